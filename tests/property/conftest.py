"""How long the fuzzers run: `pytest tests/property --minutes 60`."""


def pytest_addoption(parser):
    parser.addoption("--minutes", type=float, default=0.0, help="minutes for the fuzzer of calls; none is seconds")
    parser.addoption("--fuzz-seed", type=int, default=1, help="where the fuzzer of calls begins")
