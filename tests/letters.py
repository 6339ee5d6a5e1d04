"""A small text of random words of one letter, for trainings of seconds."""

import random


def write_letters(folder, letters, lines, valid):
    """`train.txt` of so many lines, `valid.txt` of the first of them, into a new folder, which is returned."""
    folder.mkdir()
    generator = random.Random(0)
    text = [" ".join(generator.choices(letters, k=generator.randint(1, 9))) for _ in range(lines)]
    (folder / "train.txt").write_text("\n".join(text))
    (folder / "valid.txt").write_text("\n".join(text[:valid]))
    return folder
