"""A display of trainings that says nothing, and can cut a training off."""


class CutError(Exception):
    """What stops a training without warning."""


class Quiet:
    """A display that says nothing, and can cut off or interrupt after some steps."""

    def __init__(self, at=None, error=CutError):
        self.at, self.error, self.steps = at, error, 0

    def start_epoch(self, epoch, steps):
        pass

    def step(self, done, loss_nats, tokens_per_second):
        self.steps += 1
        if self.steps == self.at:
            raise self.error

    def end_epoch(self, record):
        pass
