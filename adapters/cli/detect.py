"""``logitport detect``: whether a text is marked."""

import socket
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from ..content import read_content
from ..tokenizer_copy import TokenizerCopy
from .failures import failing_plainly
from .printing import say
from .reply import ANSWER, read_reply
from .source import read_text
from .texts import digest_of, load_tokenizer, quoted

if TYPE_CHECKING:
    from ..detection import Profile

HOST, PORT = "127.0.0.1", 8300
SHOWN = 40
"""The characters of a marked part that are printed."""


@failing_plainly
def detect(
    profiles: Annotated[
        str, typer.Option(help="A file of profiles, or a server's configuration with them.")
    ],
    file: Annotated[
        str, typer.Argument(metavar="INPUT", help="A text, or with --tokens its token ids.")
    ] = "-",
    profile: Annotated[
        list[str] | None, typer.Option(help="The name of a profile to try; all by default.")
    ] = None,
    tokenizer: Annotated[
        str | None, typer.Option(help="The model's folder, or its name on the Hugging Face hub.")
    ] = None,
    tokens: Annotated[
        bool, typer.Option("--tokens", help="INPUT and prompt are lists, or servers' answers.")
    ] = False,
    choice: Annotated[int, typer.Option(help="The index of the reply in an answer.")] = 0,
    prompt: Annotated[str | None, typer.Option(help="A file with what INPUT replies to.")] = None,
    threshold: Annotated[float, typer.Option(help="The highest p-value of a mark.")] = 0.01,
    as_json: Annotated[bool, typer.Option("--json", help="Print an object.")] = False,
    html: Annotated[str | None, typer.Option(help="Write a page with coloured tokens.")] = None,
    serve: Annotated[bool, typer.Option("--serve", help="Become a server.")] = False,
    host: Annotated[str, typer.Option(help="The server's address.")] = HOST,
    port: Annotated[int, typer.Option(help="The server's port.")] = PORT,
) -> None:
    """Say whether a text is marked; exit status 1 if it is not."""
    from ..detection.page import page, said
    from ..detection.question import Question, TextTokenizer, examine, select

    known, loaded, texts = select(profile, _read(profiles)), None, None
    if tokenizer is not None:
        loaded = load_tokenizer(tokenizer)
        encode = partial(TokenizerCopy(lambda: loaded).encode, add_special_tokens=False)
        texts = TextTokenizer(tokenizer, digest_of(tokenizer), lambda text: encode(text).ids)
    if serve:
        if file != "-" or tokens or choice or prompt or as_json or html:
            raise ValueError("A server reads no INPUT: use --serve without the options for one")
        from uvicorn import Config, Server

        from ..detection.server import make_app

        config = Config(make_app(known, texts, threshold), limit_concurrency=64)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with socket.create_server((host, port), family=family) as listening:
            say(f"Listening at port {listening.getsockname()[1]} of {host}")
            Server(config).run(sockets=[listening])
        return
    if (host, port) != (HOST, PORT):
        raise ValueError("--host and --port are a server's: use --serve")
    if prompt == file == "-":
        raise ValueError("INPUT and the prompt cannot both be standard input")
    if tokens:
        reply = read_reply(file, choice)
        before = read_reply(prompt).output_ids if prompt else reply.prompt_ids
        question = Question(token_ids=[*reply.output_ids], prompt_token_ids=[*(before or ())])
    elif choice:
        raise ValueError("--choice is of a server's answer: use --tokens")
    elif texts is None:
        raise ValueError("A text needs --tokenizer; if INPUT is token ids, use --tokens")
    else:
        before = texts.encode(read_text(prompt)) if prompt else ()
        text = read_text(file)
        if ANSWER.match(text):
            what = "examine its tokens with --tokens, or its text alone"
            raise ValueError(f"INPUT is a server's answer: {what}")
        question = Question(text, prompt_token_ids=[*before])
    found, token_ids = examine(question, known, texts, threshold)

    def text_of(*ids: int) -> str:
        return loaded.decode(ids, skip_special_tokens=False) if loaded else ""

    if html is not None:
        made = page(found, known, token_ids, question.prompt_token_ids, text_of)
        Path(html).write_text(made, encoding="utf-8")
    if as_json:
        digest = {"tokenizer": texts.digest} if texts else {}
        made = msgspec.json.encode(msgspec.structs.asdict(found) | digest)
        typer.echo(msgspec.json.format(made))
    else:
        for finding in found.findings:
            line = said(finding, found.num_tokens)
            for span in finding.spans:
                text = text_of(*token_ids[span.start : span.end][:SHOWN])[:SHOWN]
                line += f"; tokens {span.start} to {span.end - 1} {text and quoted(text)}".rstrip()
            say(line)
    raise typer.Exit(not found.is_watermarked)


def _read(file: str) -> "Mapping[str, Profile]":
    from ..detection import read_profiles

    try:
        return read_profiles(read_content(file)[0])
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from None
