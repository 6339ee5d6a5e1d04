"""The page of Gradio is launched by early and later releases of the library."""

import sys
from importlib.util import find_spec, module_from_spec
from types import ModuleType
from typing import Any

import pytest


@pytest.mark.parametrize("newer", [True, False])
def test_the_page_is_launched_by_early_and_later_releases(monkeypatch, newer):
    gradio, themes, given = ModuleType("gradio"), ModuleType("gradio.themes"), {}
    vars(gradio).update(Blocks=object, themes=themes)
    vars(themes).update(Default=lambda **how: None)
    for name, module in (("gradio", gradio), ("gradio.themes", themes)):
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setenv("GRADIO_ANALYTICS_ENABLED", "False")  # which the module sets
    spec: Any = find_spec("gatedrnn.app.page")
    page = module_from_spec(spec)  # of the fake, for this test alone
    spec.loader.exec_module(page)

    class Early:
        def launch(self, *, server_name, server_port, share, quiet, prevent_thread_lock, theme, footer_links, ssr_mode,
                   mcp_server, enable_monitoring):  # fmt: skip
            return None, f"http://{server_name}:{server_port}/", None

    class Later:
        def launch(self, *, run_history=True, **how):
            given.update(run_history=run_history)
            return Early().launch(**how)

    assert page.start(Later() if newer else Early(), 7) == "http://127.0.0.1:7/"
    assert given == ({"run_history": False} if newer else {})
