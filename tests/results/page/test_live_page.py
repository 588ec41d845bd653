"""A live view in a browser: type, take heads out, compare and patch, write, undo, share the address."""

import re

import pytest

from attnscope.capture.load import load_model
from attnscope_live.conversation import Conversation
from attnscope_live.copied import Source
from tests.packages.live.served import TOKEN, serving

TEXT = "The car near the rivers"
OTHER = "The cars near the rivers"
TABLE = ".predicted tbody tr"


@pytest.fixture(scope="module")
def tasks():
    return Conversation(load_model("bundled:tasks", device="cpu"), Source("bundled:tasks"))


@pytest.fixture(scope="module")
def port(tasks):
    with serving(tasks, {"text": TEXT}) as number:
        yield number


@pytest.fixture
def live(browser, port):
    """Open the page of the server in a tab of its own; at the end it had nothing to complain of."""
    context, complaints = browser.new_context(), []

    def open_page(fragment="", *, at=port, width=1440, scheme="light"):
        page = context.new_page()
        page.set_viewport_size({"width": width, "height": 900})
        page.emulate_media(color_scheme=scheme)
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(f"http://127.0.0.1:{at}/?token={TOKEN}{fragment}")
        page.locator(TABLE).first.wait_for()
        page.locator(".queries .token").first.wait_for()  # which come with the open head, before the table or after it
        return page

    yield open_page
    context.close()
    assert complaints == []


def tokens(page):
    return page.locator(".queries .token").all_text_contents()


def chances(page, column="before"):
    """Shares of the likeliest tokens, from the bars."""
    return [
        (
            row.locator("th").text_content(),
            float(row.locator(f"td.{column}").evaluate("c => c.style.getPropertyValue('--p')")),
        )
        for row in page.locator(TABLE).all()[:3]
    ]


def test_the_page_follows_what_is_typed(live, tasks):
    page = live()
    box = page.get_by_label("Text", exact=True)
    assert box.input_value() == TEXT
    box.press_sequentially(" are", delay=20)
    page.locator(".queries .token", has_text="are").wait_for()
    page.locator("caption", has_text="After “␣are”").wait_for()
    tasks.answer("look", {"text": f"{TEXT} are"})
    best = tasks.answer("predict", {"position": len(tokens(page)) - 1}).content["rows"][0]
    assert chances(page)[0][1] == pytest.approx(2.718281828 ** best["before"], abs=1e-4)
    box.fill("")
    page.locator(".status", has_text="found no text").wait_for()
    assert tokens(page)[-1].strip() == "are"
    box.fill("The boat")
    page.locator(".queries .token", has_text="boat").wait_for()
    assert page.locator(".status").is_hidden()


def test_heads_are_taken_out_put_back_and_undone(live, tasks):
    page = live()
    page.get_by_label("Layer 1, head 2", exact=True).click(modifiers=["Shift"])
    page.locator("td.after").first.wait_for()
    assert page.get_by_label("Layer 1, head 2", exact=True).get_attribute("class") == "removed"
    page.get_by_label("Layer 2, head 0", exact=True).click()
    page.get_by_role("button", name="Take head 2.0 out").click()
    page.get_by_role("button", name="2.0 ×").wait_for()
    loss = tasks.answer("look", {"text": TEXT, "removed": [[1, 2], [2, 0]]}).content["loss"]
    page.locator(".predicted p", has_text=f"{loss['after']:.3g} nats a token").wait_for()
    page.get_by_role("button", name="Undo").click()
    page.get_by_role("button", name="2.0 ×").wait_for(state="detached")
    page.get_by_role("button", name="Put all back").click()
    page.locator("td.after").first.wait_for(state="detached")
    assert page.locator(".grid button.removed").count() == 0
    page.get_by_label("Layer 0, head 1", exact=True).focus()
    page.keyboard.press("x")
    page.get_by_role("button", name="0.1 ×").wait_for()


def test_a_second_text_is_compared_and_its_heads_are_patched(live, tasks):
    page = live()
    page.get_by_role("button", name="Compare with a second text").click()
    page.get_by_label("Second text", exact=True).fill(OTHER)
    page.locator("p", has_text="Heads that attend most differently").wait_for()
    page.locator(".predicted p", has_text="in the second text.").wait_for()
    page.get_by_label("Maps of", exact=True).select_option("difference")
    page.get_by_label("Layer 1, head 3", exact=True).click()
    page.locator(".typical", has_text="mean difference").wait_for()
    page.get_by_role("button", name="Patch head 1.3 from the second text").click()
    said = page.locator(".predicted p", has_text="of the difference between the texts returns").text_content()
    question = {"text": TEXT, "other": OTHER, "removed": [[1, 3]], "by": "other"}
    position = tasks.answer("look", question).content["position"]
    share = tasks.answer("predict", {"position": position}).content["returned"]["share"]
    assert f"{round(100 * share)}%" in said
    page.get_by_label("Layer 0, head 1", exact=True).drag_to(page.get_by_label("Text", exact=True))
    page.get_by_role("button", name="0.1 ×").wait_for()
    page.get_by_label("Second text", exact=True).fill("A text of another length, which cannot be aligned")
    page.locator(".status", has_text="equally many tokens").wait_for()


def test_the_model_writes_and_steps_back(live):
    page = live()
    before = len(tokens(page))
    word = page.locator(f"{TABLE} .name").first.text_content()
    page.locator(f"{TABLE} .add").first.click()
    page.locator(f".queries .token[data-token='{before}']").wait_for()
    assert tokens(page)[-1].replace(" ", "␣") == word
    page.get_by_role("button", name="Write a token").click()
    page.locator(f".queries .token[data-token='{before + 1}']").wait_for()
    page.locator("p", has_text="on what was written").wait_for()
    assert page.locator(".queries .token.written").count() == 2
    page.get_by_role("button", name="Step back").click()
    page.locator(f".queries .token[data-token='{before + 1}']").wait_for(state="detached")
    assert len(tokens(page)) == before + 1
    page.get_by_role("button", name="Undo").click()
    page.locator(f".queries .token[data-token='{before + 1}']").wait_for()
    page.locator("caption", has_text=f"position {before + 1}").wait_for()


def test_undo_goes_back_through_all_that_was_changed(live):
    page = live()
    undo, box = page.get_by_role("button", name="Undo"), page.get_by_label("Text", exact=True)
    assert undo.is_disabled()
    box.press_sequentially(" are", delay=10)
    page.locator(".queries .token", has_text="are").wait_for()
    page.locator(f"{TABLE} .add").first.click()
    page.locator(".queries .token.written").wait_for()
    page.get_by_role("button", name="Take head 0.0 out").click()
    page.locator("td.after").first.wait_for()
    undo.click()
    page.locator("td.after").first.wait_for(state="detached")
    assert page.locator(".queries .token.written").count() == 1
    undo.click()
    page.locator(".queries .token.written").wait_for(state="detached")
    assert box.input_value() == f"{TEXT} are"
    undo.click()
    page.locator(".queries .token", has_text="are").wait_for(state="detached")
    assert box.input_value() == TEXT
    assert undo.is_disabled()


def test_heads_that_attend_to_a_key_are_listed(live, tasks):
    page = live()
    page.get_by_label("Key", exact=True).select_option("2")
    tasks.answer("look", {"text": TEXT})
    best = tasks.answer("reach", {"query": len(tokens(page)) - 1, "key": 2}).content["heads"][0]
    page.get_by_role("button", name=re.compile(rf"^{best['layer']}\.{best['head']} \d+%")).first.wait_for()


def test_differences_are_not_called_attention(live):
    page = live()
    page.get_by_role("button", name="Compare with a second text").click()
    page.get_by_label("Second text", exact=True).fill(OTHER)
    page.get_by_label("Maps of", exact=True).select_option("difference")
    page.locator(".typical", has_text="mean difference of the weight").wait_for()
    page.locator(".note", has_text="the weight differs most at").wait_for()
    page.locator(".scale-name", has_text="difference of the weights of the two texts").wait_for()


def test_each_head_is_tried(live):
    page = live()
    page.get_by_role("button", name="Take out each head alone").click()
    page.locator(".effects button").nth(7).wait_for()
    page.locator(".effects button").first.click()
    name = page.locator(".effects button").first.text_content().split()[0]
    page.get_by_role("button", name=f"Take head {name} out").wait_for()


def test_the_logit_is_split_by_heads_on_the_map(live):
    page = live()
    page.get_by_role("button", name="Split the logit by heads").click()
    page.locator(".effects button").first.wait_for()
    named, part = page.locator(".effects button").first.text_content().split()
    layer, head = named.split(".")
    cell = page.get_by_label(f"Layer {layer}, head {head}: {part}", exact=True)
    assert "/ 85%" in cell.evaluate("c => c.style.getPropertyValue('--over')")
    page.get_by_label("Text", exact=True).fill("The car")
    page.get_by_label(f"Layer {layer}, head {head}", exact=True).wait_for()


def test_the_address_holds_the_state(live):
    page = live()
    page.get_by_label("Text", exact=True).fill("The boats near the river")
    page.get_by_label("Layer 2, head 1", exact=True).click()
    page.get_by_role("button", name="Take head 2.1 out").click()
    page.locator("td.after").first.wait_for()
    again = live("#" + page.url.partition("#")[2])
    again.locator("td.after").first.wait_for()
    assert again.get_by_label("Text", exact=True).input_value() == "The boats near the river"
    assert chances(again, "after") == chances(page, "after")
    live("#%7Bnot%20json")
    live('#{"removed":[["<script>",1]],"layer":-3,"text":5,"shows":"__proto__"}')


def test_what_is_copied_names_what_is_shown(live):
    page = live()
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.get_by_role("button", name="Take head 0.0 out").click()
    page.locator("td.after").first.wait_for()
    page.get_by_role("button", name="Copy as command").click()
    page.locator(".told", has_text="Copied.").wait_for()
    command = page.evaluate("navigator.clipboard.readText()")
    assert command.startswith(
        "attnscope intervene bundled:tasks 'The car near the rivers' --heads none --together 0.0 "
    )


def test_a_page_whose_server_ends_says_so(live, tasks):
    with serving(tasks, {"text": TEXT}) as other:
        page = live(at=other)
    page.locator(".status", has_text="The model has stopped answering").wait_for()
    assert tokens(page)


def test_markup_of_a_text_is_text(live):
    page = live()
    page.get_by_label("Text", exact=True).fill("<img src=x onerror=alert(1)> <b>bold</b>")
    page.locator(".queries .token", has_text="<").first.wait_for()
    assert page.locator("img, b").count() == 0


@pytest.mark.parametrize(("width", "scheme"), [(1440, "light"), (390, "dark")])
def test_it_fits_and_every_control_has_a_name(live, width, scheme):
    page = live(width=width, scheme=scheme)
    page.get_by_role("button", name="Compare with a second text").click()
    page.locator("p", has_text="Heads that attend most differently").wait_for()
    page.get_by_role("button", name="Take head 0.0 out").click()
    page.locator("td.after").first.wait_for()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    nameless = page.evaluate(
        "[...document.querySelectorAll('button, select, textarea, input')].filter((one) => "
        "!(one.getAttribute('aria-label') || one.textContent.trim() || one.labels?.length)).map((one) => one.outerHTML)"
    )
    assert nameless == []


def test_the_same_view_is_in_japanese(browser, tasks, monkeypatch):
    from attnscope import set_language

    set_language("ja")
    try:
        with serving(tasks, {"text": TEXT}) as number:
            page = browser.new_page()
            page.goto(f"http://127.0.0.1:{number}/?token={TOKEN}")
            page.locator(TABLE).first.wait_for()
            said = page.locator("main").inner_text()
            page.close()
    finally:
        set_language("en")
    assert re.search("[ぁ-ん]", said)
    assert not re.search(r"Undo|Copy|Take|Write|Loss|nats|Temperature|Compare|After|probability", said)
