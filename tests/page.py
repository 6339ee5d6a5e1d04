"""What a page says and what it would load, for the tests of every page."""

import re
from html.parser import HTMLParser

_LOADING = ("src", "srcset", "href", "xlink:href", "data", "poster", "action")


class Page(HTMLParser):
    """A page's tags, its texts outside of tags, and whatever it would load from outside."""

    def __init__(self, text):
        super().__init__()
        self.loaded, self.tags, self.texts = [], [], []
        bare = re.sub(r'xmlns(:\w+)?="[^"]*"|<metadata>.*?</metadata>', "", text, flags=re.DOTALL)
        self.loaded += re.findall(r"https?://|@import|url\(http", bare)
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        if tag in ("script", "link", "iframe"):
            self.loaded.append(tag)
        named = [value or "" for key, value in attrs if key in _LOADING]
        self.loaded += [value for value in named if not value.startswith(("#", "data:"))]

    def handle_data(self, data):
        self.texts.append(data.strip())
