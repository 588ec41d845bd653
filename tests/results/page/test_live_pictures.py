"""Pictures in a live view in a browser: one is dropped, heads are taken out; and the page alone."""

import base64
import io

import pytest

import attnscope
from tests.image_models import looking_vit, vision_model, write_pictures
from tests.image_text_models import blue_at, save_looking_llava
from tests.packages.live.served import TOKEN, serving

DROP = """([selector, packed, name, type]) => {
  const bytes = Uint8Array.from(atob(packed), (c) => c.charCodeAt(0));
  const transfer = new DataTransfer();
  transfer.items.add(new File([bytes], name, { type }));
  const drop = new DragEvent("drop", { bubbles: true, cancelable: true, dataTransfer: transfer });
  document.querySelector(selector).dispatchEvent(drop);
}"""


def packed(image):
    file = io.BytesIO()
    image.save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode()


@pytest.fixture
def open_page(browser):
    """Open a page; at the end it had nothing to complain of."""
    context, complaints = browser.new_context(), []

    def opened(address, *, width=1440, scheme="light"):
        page = context.new_page()
        page.set_viewport_size({"width": width, "height": 900})
        page.emulate_media(color_scheme=scheme)
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(address)
        page.locator(".patches .token").first.wait_for()
        return page

    yield opened
    context.close()
    assert complaints == []


@pytest.fixture(scope="module")
def llava(tmp_path_factory):
    place = tmp_path_factory.mktemp("llava")
    blue_at(2, 1).save(place / "blue.png")
    view = attnscope.view(save_looking_llava(place / "model"), "Where is it?", image=place / "blue.png")
    start = {"text": view.text, "layer": 0, "head": 0}
    with serving(view.conversation, start) as port:
        yield f"http://127.0.0.1:{port}/?token={TOKEN}"


@pytest.fixture(scope="module")
def vit(tmp_path_factory):
    place = tmp_path_factory.mktemp("vit")
    for part in vision_model("vit"):
        part.save_pretrained(place / "model")
    view = attnscope.view(place / "model", next(write_pictures(place / "pictures").glob("*.png")))
    with serving(view.conversation, {"text": "", "layer": 0, "head": 0}) as port:
        yield f"http://127.0.0.1:{port}/?token={TOKEN}"


def shaded(page):
    """Names of the patches with more than half of the weight's shade."""
    names = "all => all.filter(t => t.style.getPropertyValue('--w') > 0.5).map(t => t.title)"
    return page.eval_on_selector_all(".patches .token", names)


def test_a_token_of_text_looks_at_a_picture_and_at_one_that_is_dropped(open_page, llava):
    page = open_page(llava)
    page.locator(".queries > p .token", has_text="is").first.click()
    page.locator(".note", has_text="r2c1").wait_for()
    assert shaded(page) == ["image 1 r2c1"]
    before = page.get_attribute(".patches img", "src")
    page.evaluate(DROP, [".attnscope-live", packed(blue_at(0, 3)), "blue.png", "image/png"])
    page.locator(".note", has_text="r0c3").wait_for()
    assert shaded(page) == ["image 1 r0c3"]
    assert page.get_attribute(".patches img", "src") != before
    page.evaluate(DROP, [".attnscope-live", packed(blue_at(0, 3)), "x.gif", "image/gif"])
    page.locator(".status", has_text="expected PNG, JPEG or WebP").wait_for()
    page.evaluate(DROP, [".attnscope-live", "aGVsbG8=", "x.png", "image/png"])
    page.locator(".status", has_text="found no picture that can be read").wait_for()
    page.get_by_label("Text", exact=True).fill("<image> A boat")
    page.locator(".queries > p", has_text="A boat").wait_for()
    page.get_by_role("button", name="Write a token").click()
    page.get_by_role("button", name="Step back").and_(page.locator(":enabled")).wait_for()
    assert page.locator(".patches .token").count() == 16


def test_a_box_over_patches_and_a_chat(open_page, llava):
    page = open_page(llava)
    corners = [page.locator(".patches .token").nth(place).bounding_box() for place in (5, 10)]
    middles = [(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2) for box in corners]
    page.mouse.move(*middles[0])
    page.mouse.down()
    page.mouse.move(*middles[1])
    page.mouse.up()
    page.locator(".predicted", has_text="In the box of 4 patches, of the weight").wait_for()
    boxed = "all => all.flatMap((one, i) => (one.classList.contains('boxed') ? [i] : []))"
    assert page.eval_on_selector_all(".patches .token", boxed) == [5, 6, 9, 10]
    page.get_by_role("button", name="Remove the box").click()
    assert page.eval_on_selector_all(".patches .token", boxed) == []
    before = page.locator(".queries > p .token").count()
    page.get_by_label("As a chat, by the model's template").check()
    page.locator(".queries > p .token").nth(before).wait_for()
    assert "chat%22%3Atrue" in page.url


def test_heads_of_a_picture_are_taken_out_and_labels_follow(open_page, vit):
    page = open_page(vit)
    assert page.locator("textarea:visible").count() == 0
    assert page.locator("caption").text_content() == "Label"
    assert sorted(page.locator(".predicted tbody th").all_text_contents()) == ["LABEL_0", "LABEL_1"]
    page.get_by_label("Layer 0, head 1", exact=True).click(modifiers=["Shift"])
    page.locator("td.after").first.wait_for()
    page.locator(".patches .token").nth(5).click()
    page.keyboard.press("ArrowDown")
    assert page.evaluate("document.activeElement.title") == "r2c1"


@pytest.mark.parametrize(("width", "scheme"), [(1440, "light"), (390, "dark")])
def test_pictures_fit_the_window(open_page, llava, width, scheme):
    page = open_page(llava, width=width, scheme=scheme)
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_a_page_alone_has_its_picture(open_page, tmp_path):
    images = write_pictures(tmp_path / "pictures")
    _, processor = vision_model("vit")
    view = attnscope.view(looking_vit(((0, -1), (-1, 0))), next(images.glob("*.png")), tokenizer=processor, head=1)
    page = open_page(view.save(tmp_path / "view.html").as_uri())
    page.locator(".patches .token").nth(10).click()
    assert shaded(page) == ["r1c2"]
    assert page.get_attribute(".patches img", "src").startswith("data:image/jpeg")
