"""Screenshots of every view of a page that runs: light, dark, and as narrow as a telephone.

    python -m tests.replay.watch.screenshots http://127.0.0.1:8360/ FOLDER

``gallery`` makes those of made-up pages; these are of a real stream.
"""

import json
import sys
from pathlib import Path
from urllib.parse import quote
from urllib.request import urlopen

from tests.replay.watch.browser import chromium

LOOKS = {"light": (1280, 900), "dark": (1280, 900), "narrow": (360, 740), "wall": (2560, 1440)}
VIEWS = ("now", "queue", "account", "tune", "model", "audit")


def screenshots(url: str, folder: Path) -> list[Path]:
    """One each view and look; returns the files."""
    folder.mkdir(parents=True, exist_ok=True)
    with urlopen(f"{url}queue.json") as answer:
        cases = json.load(answer)["cases"]
    account = max(cases, key=lambda case: len(case["alerts"]))["account"] if cases else ""
    made = []
    with chromium() as browser:
        for look, (width, height) in LOOKS.items():
            scheme = "dark" if look == "dark" else "light"
            context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
            page = context.new_page()
            for view in VIEWS:
                page.goto(f"{url}{view}" + (f"?name={quote(account)}" if view == "account" else ""))
                page.wait_for_timeout(500)
                made.append(folder / f"{view}-{look}.png")
                page.screenshot(path=made[-1], full_page=look != "wall")
            context.close()
    return made


if __name__ == "__main__":
    for path in screenshots(sys.argv[1], Path(sys.argv[2])):
        print(path)
