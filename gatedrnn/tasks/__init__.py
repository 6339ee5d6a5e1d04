"""What is trained: a task says what the loop needs of an experiment. A further one is a file and a line here."""

from gatedrnn.core.registry import Registry
from gatedrnn.tasks.grammar import GrammarInduction
from gatedrnn.tasks.inference import Inference
from gatedrnn.tasks.language_modelling import LanguageModelling
from gatedrnn.tasks.task import Experiment, Task
from gatedrnn.tasks.translation import Translation

TASKS: Registry[type[Experiment]] = Registry(
    "task", {each.name: each for each in (LanguageModelling, Translation, Inference, GrammarInduction)}
)
"""By name."""

__all__ = ["TASKS", "Experiment", "GrammarInduction", "Inference", "LanguageModelling", "Task", "Translation"]
