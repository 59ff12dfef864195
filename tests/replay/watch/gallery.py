"""The page to look at without a server: every view from made-up values, light, dark and narrow, and checked by axe.

python -m tests.replay.watch.gallery FOLDER [VIEW...]
"""

import functools
import http.server
import shutil
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from replay.watch import charts
from tests.replay.watch import samples

HERE = Path(charts.__file__).parent.parent
CHROMIUM = "/usr/bin/chromium"
QUIET = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]
PARTS = {
    "now": ["pulse", "newest"],
    "queue": ["cases"],
    "account": ["case", "timeline"],
    "tune": ["tune"],
    "model": ["model"],
    "audit": ["entries"],
}


def environment() -> Environment:
    """As the server has it; what is not in the context is a mistake here."""
    made = Environment(loader=FileSystemLoader(HERE / "templates"), autoescape=True, undefined=StrictUndefined)
    made.globals["charts"] = charts
    made.filters |= {
        "number": lambda value: f"{value:,}",
        "money": lambda value: f"{value:,.2f}",
        "nats": lambda value: f"{value:.1f}",
        "percent": lambda value: f"{100 * value:.0f} %",
        "clock": samples.CALENDAR.show,
        "ago": lambda seconds: f"{seconds:.0f} s ago",
        "moment": lambda seconds: datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds"),
    }
    return made


def context(view: str, page: dict[str, Any], **changed: Any) -> dict[str, Any]:
    return {
        "view": view,
        "page": page,
        "who": "bea",
        "role": "tune",
        "may_judge": True,
        "may_tune": True,
        "csrf": "c5rf",
        "version": "1",
        "query": {"by": "loss"} if view == "queue" else {},
        "exports": {"csv": f"/{view}.csv?by=loss", "json": f"/{view}.json?by=loss"},
        "demo": True,
        "login": True,
        "source": "a simulated town",
        "part": None,
        "run": "r1",
        "at": "30159.56",
        "calendar": samples.CALENDAR,
    } | changed


def rendered(view: str, page: dict[str, Any], **changed: Any) -> str:
    return environment().get_template(f"{view}.html").render(context(view, page, **changed))


def part(view: str, name: str, page: dict[str, Any], **changed: Any) -> str:
    """One block alone, as the server answers ?part=NAME."""
    template = environment().get_template(f"{view}.html")
    return "".join(template.blocks[name](template.new_context(context(view, page, **changed))))


def pages() -> dict[str, str]:
    full, evil = samples.full(), samples.evil(samples.full())
    made = {view: rendered(view, page) for view, page in full.items()}
    made |= {
        f"{view}-evil": rendered(view, page, who=samples.EVIL, source=samples.EVIL, query={"by": samples.EVIL})
        for view, page in evil.items()
    }
    looking = {"may_judge": False, "may_tune": False, "role": "view"}
    made |= {f"{view}-bare": rendered(view, page, **looking) for view, page in samples.bare().items()}
    return made


def write(folder: Path) -> list[str]:
    """All pages as files, with the static files where they look for them."""
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copytree(HERE / "static", folder / "static", dirs_exist_ok=True)
    made = pages()
    for name, text in made.items():
        (folder / f"{name}.html").write_text(text, encoding="utf-8")
    return list(made)


@contextmanager
def served(folder: Path) -> Iterator[str]:
    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

        def do_GET(self) -> None:
            # The script asks for a part once the stream of events has been away for a second; only a server has parts.
            super().do_GET() if "part=" not in self.path else self.send_error(404)

        def end_headers(self) -> None:
            self.send_header(
                "Content-Security-Policy",
                "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
                "form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
            )
            super().end_headers()

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def look(folder: Path, wanted: list[str]) -> list[str]:
    """Pictures of the pages, and what axe and the browser's console have to say."""
    from axe_playwright_python.sync_playwright import Axe
    from playwright.sync_api import sync_playwright

    found: list[str] = []
    names = [name for name in write(folder) if not wanted or name in wanted]
    kinds = {"light": (1280, "light"), "dark": (1280, "dark"), "narrow": (360, "light"), "wall": (3840, "dark")}
    with served(folder) as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=QUIET)
        for kind, (width, scheme) in kinds.items():
            # axe is put into the page as a script of its own, which the page's policy would refuse.
            frame = browser.new_context(
                viewport={"width": width, "height": 800 if width < 3000 else 2160}, color_scheme=scheme, bypass_csp=True
            )
            for name in names:
                if kind == "wall" and name not in ("now", "queue"):
                    continue
                tab = frame.new_page()
                tab.on("pageerror", lambda error, name=name: found.append(f"{name}: {error}"))
                tab.goto(f"{address}/{name}.html")
                tab.wait_for_timeout(150)
                wide = tab.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
                if wide > 0:
                    found.append(f"{name}, {kind}: {wide} px too wide")
                for violation in Axe().run(tab).response["violations"] if kind != "wall" else []:
                    found.append(f"{name}, {kind}: {violation['impact']}: {violation['help']}")
                    found.extend(f"    {node['html'][:160]}" for node in violation["nodes"][:3])
                tab.screenshot(path=folder / f"{name}-{kind}.png", full_page=kind != "wall")
                tab.close()
            frame.close()
        browser.close()
    return found


if __name__ == "__main__":
    print("\n".join(look(Path(sys.argv[1]), sys.argv[2:])) or "nothing to complain about")
