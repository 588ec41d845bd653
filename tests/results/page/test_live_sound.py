"""A sound in a live view in a browser: words on its timeline, and the transcript without a head."""

import pytest

import attnscope
from tests.packages.live.served import TOKEN, serving
from tests.speech_models import SAID, save_whisper, write_sounds


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    place = tmp_path_factory.mktemp("whisper")
    write_sounds(place / "sounds")
    view = attnscope.view(save_whisper(place / "model"), place / "sounds" / "0.wav", targets=[SAID[0]])
    with serving(view.conversation, {"text": view.text, "layer": view.layer, "head": view.head}) as port:
        yield f"http://127.0.0.1:{port}/?token={TOKEN}"


@pytest.mark.parametrize(("width", "scheme"), [(1440, "light"), (390, "dark")])
def test_words_stand_on_the_timeline_and_the_transcript_follows_the_heads(browser, address, width, scheme):
    context, complaints = browser.new_context(), []
    page = context.new_page()
    page.set_viewport_size({"width": width, "height": 900})
    page.emulate_media(color_scheme=scheme)
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto(address)
    page.locator(".said q").first.wait_for()
    words = page.locator(".words button")
    assert words.all_text_contents() == SAID[0].split()
    words.nth(2).click()
    assert page.locator(".token.current").text_content().strip() == "com"  # the first token of "comes"
    for head in (0, 1):
        page.get_by_label(f"Layer 3, head {head}", exact=True).click(modifiers=["Shift"])
    page.locator(".said", has_text="Without the heads:").wait_for()
    assert page.locator("td.after").first.is_visible()
    page.get_by_label("Transcript", exact=True).fill("The boats")
    page.locator(".words button", has_text="boats").wait_for()
    page.get_by_label("Layer 0, head 0", exact=True).click()
    page.locator(".timeline", has_text="Open a head of the decoder").wait_for()
    assert words.count() == 0
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert complaints == []
    context.close()
