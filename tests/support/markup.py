"""HTML as a browser reads it."""

from html.parser import HTMLParser


class Parsed(HTMLParser):
    """A parsed page, or a part of one.

    Attributes:
        tags: the names of all elements.
        attributes: the names of all attributes.
        text: what is not markup.
    """

    def __init__(self, markup: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.text = ""
        self.feed(markup)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_data(self, data: str) -> None:
        self.text += data
