"""Every view in a real Chromium, light, dark, narrow and on a wall: axe finds nothing, no page is too wide."""

from pathlib import Path

import pytest

from tests.replay.watch import gallery, samples

pytest.importorskip("playwright")
pytest.importorskip("axe_playwright_python")


@pytest.mark.skipif(not Path(gallery.CHROMIUM).exists(), reason="there is no Chromium")
def test_nothing_to_complain_about(tmp_path):
    views = list(samples.full())
    assert not gallery.look(tmp_path, views)
    assert len(list(tmp_path.glob("*.png"))) == 3 * len(views) + 2
