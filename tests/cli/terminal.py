"""Commands as a person types them, through `main`, for the tests of every command."""

import contextlib
import io
import json
import shutil

import torch
import yaml

from gatedrnn.cli.main import main


def call(*arguments):
    """(exit code, stdout, stderr) of a command."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main([str(argument) for argument in arguments])
        except SystemExit as stop:
            code = stop.code
    return code, out.getvalue(), err.getvalue()


def works(*arguments):
    """What a command that must work prints."""
    code, out, err = call(*arguments)
    assert code == 0, err
    return out


def record(*arguments):
    """The one record that a command prints with --json."""
    return json.loads(works(*arguments, "--json"))


def records(*arguments):
    """The records, one a line, that a command prints with --json."""
    return [json.loads(line) for line in works(*arguments, "--json").splitlines()]


def fails(*arguments, code=1):
    """The one line on standard error of a command that must fail, with this exit code or one of these."""
    given, out, err = call(*arguments)
    assert given in (code if isinstance(code, tuple) else (code,)), (given, out, err)
    assert "Traceback" not in err
    assert err.endswith("\n") and err.count("\n") == 1, err
    assert err.startswith("gatedrnn: ")
    return err


def copy_of(run, folder, **data):
    """A copy of a run as `folder`, with these keys of its section `data`; None drops a key."""
    shutil.copytree(run, folder, ignore=shutil.ignore_patterns("tokens", "checksums.json"))
    path = folder / "config.yaml"
    config = yaml.safe_load(path.read_text())
    config["data"] = {key: value for key, value in (config["data"] | data).items() if data.get(key, 0) is not None}
    path.write_text(yaml.safe_dump(config))
    return folder


def by_steps(run, ids):
    """log P in nats of each id after the ones before it and, first of all, `<eos>`: one step of the model at a time."""
    states, before, each = None, 1, []
    with torch.no_grad():
        for token in ids:
            output = run.model.eval()(torch.tensor([[before]]), states)
            each.append(float(output.logits[0, 0].double().log_softmax(-1)[token]))
            states, before = output.states, token
    return each
