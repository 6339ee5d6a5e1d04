"""Runs read side by side in a page of Gradio, for people with a Python at hand; needs the extra `app`.

`gatedrnn.app.page` builds it and is the only module here that imports Gradio; `gatedrnn.app.readings` is what it shows.
"""
