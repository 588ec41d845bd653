"""Chats: what the template writes, and who says each token."""

import json
from pathlib import Path

import pytest

import attnscope
from attnscope import AttnscopeError
from attnscope.read import chats as _chats
from attnscope.read.chats import Chats, are_chats
from attnscope.read.messages import messages_of

#: As many models have it: marks around each message, a greeting before the first, contents trimmed.
TEMPLATE = (
    "{{ bos_token }}{% if messages[0].role != 'system' %}<system>Be kind.</>{% endif %}"
    "{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}</>{% endfor %}"
)
#: System text within the first user message, as Llama 2 writes it; no prefix of the chat is written alike.
NESTED = (
    "{% for m in messages %}{% if m.role == 'system' %}{% elif m.role == 'user' %}[INST] "
    "{% if loop.index0 == 1 and messages[0].role == 'system' %}<<{{ messages[0].content }}>> {% endif %}"
    "{{ m.content }} [/INST]{% else %} {{ m.content }} {{ eos_token }}{% endif %}{% endfor %}"
)
CHAT = [
    {"role": "system", "content": "Answer in a word."},
    {"role": "user", "content": " Is the tide user?\n"},
    {"role": "assistant", "content": "user"},
    {"role": "user", "content": "Is it?"},
    {"role": "assistant", "content": "Yes"},
]


def said(texts, **options):
    """Who says what, one after the other, in all windows."""
    found = []
    for window in texts.windows(**{"length": 128, **options}):
        for token, role in zip(window.tokens, window.roles, strict=True):
            if not found or found[-1][0] != role:
                found.append([role, ""])
            found[-1][1] += token
    return [(role, text.strip()) for role, text in found]


@pytest.mark.parametrize("template", [TEMPLATE, NESTED])
def test_each_content_belongs_to_its_speaker_and_the_rest_to_the_template(tokenizer, template):
    texts = Chats([CHAT], template=template).read_with(tokenizer)
    found = said(texts)
    contents = [(one["role"], one["content"].strip()) for one in CHAT]
    assert [one for one in found if one[0] != "template"] == contents
    [text] = texts
    assert text.content == tokenizer.apply_chat_template(CHAT, chat_template=template, tokenize=False)
    [window] = texts.windows(length=128)
    encoded = tokenizer.apply_chat_template(CHAT, chat_template=template, tokenize=True)
    assert list(window.ids) == encoded["input_ids"]


def test_roles_agree_with_the_mask_that_a_template_gives_itself(tokenizer):
    """transformers' own answer, where a template marks what the assistant says."""
    template = (
        "{% for m in messages %}<{{ m.role }}>{% if m.role == 'assistant' %}"
        "{% generation %}{{ m.content }}{% endgeneration %}{% else %}{{ m.content }}{% endif %}</>{% endfor %}"
    )
    mask = tokenizer.apply_chat_template(
        CHAT, chat_template=template, tokenize=True, return_dict=True, return_assistant_tokens_mask=True
    )["assistant_masks"]
    [window] = Chats([CHAT], template=template).read_with(tokenizer).windows(length=256)
    assert [int(role == "assistant") for role in window.roles] == mask
    assert 0 < sum(mask) < len(mask)


def test_chats_are_cut_into_windows_and_never_across(tokenizer):
    texts = Chats([CHAT, CHAT[1:3]], template=TEMPLATE).read_with(tokenizer)
    windows = list(texts.windows(length=16))
    assert {window.source for window in windows} == {"text 1", "text 2"}
    assert all(len(window) == len(window.roles) <= 16 for window in windows)
    assert len(list(texts.windows(length=16, limit=2))) == 2
    assert windows[:2] == list(texts.windows(length=16, limit=2))


def test_other_forms_are_the_same_chat(tokenizer, tmp_path):
    names = {"system": "system", "user": "human", "assistant": "gpt"}
    other = [{"from": names[one["role"]], "value": one["content"]} for one in CHAT]
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(json.dumps(one) for one in ({"messages": CHAT}, {"conversations": other})))
    assert are_chats(path)
    first, second = Chats(path, template=TEMPLATE).read_with(tokenizer)
    assert first.content == second.content
    assert [text.name for text in (first, second)] == ["a.jsonl:1", "a.jsonl:2 (repeats a.jsonl:1)"]
    call = messages_of([{"from": "gpt", "value": "Yes", "tool_calls": [1]}], "a.jsonl:1")
    assert call == [{"role": "assistant", "content": "Yes", "tool_calls": [1]}]


def test_what_is_written_out_is_what_is_signed(tokenizer):
    """The same messages by another template, or said by another, are other texts."""
    other = [{**CHAT[0], "role": "user"}, *CHAT[1:]]
    plain = "{% for m in messages %}{{ m.content }}{% endfor %}"
    given = [(CHAT, TEMPLATE), (CHAT, NESTED), (CHAT, plain), (other, plain)]
    digests = {Chats([chat], template=one).read_with(tokenizer).sha256() for chat, one in given}
    assert len(digests) == 4


def test_only_text_without_a_text_field_is_a_chat(tmp_path):
    path = tmp_path / "a.jsonl"
    for line, expected in (('{"text": "a", "messages": [{"role": "user", "content": "b"}]}', False), ("", False)):
        path.write_text(line)
        assert are_chats(path) is expected
    assert not are_chats(["The tide is out."])
    assert not are_chats([[1, 2, 3]])
    assert not are_chats(Path("absent.jsonl"))


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{% for m in messages %}{{ m.content | upper }}{% endfor %}", "writes around message 1 depends"),
        (
            "{{ messages[0].content }}{{ messages | map(attribute='content') | join('') | length }}",
            "writes around message 1 depends",
        ),
        ("{{ raise_exception('roles must alternate') }}", r"rejects it \(roles must alternate\)"),
        ("{% for", "the chat template is not valid Jinja"),
        ("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}", "does not end within"),
        (
            "{{ 'a' * 5000000 }}{{ messages[0].content }}",
            "writes 5,000,0.. characters, far more than the messages have",
        ),
        (
            "{% for m in messages if m.role != 'system' %}<{{ m.role }}>{{ m.content }}{% endfor %}",
            "omits the system's message 'Answer in a word.'",
        ),
        ("chat.jinja", "writes 'chat.jinja', without any message"),  # a name in the place of a template
        ("{{ messages[0].content }}\ue0009\ue001", "writes around message 1 "),
        (None, r"no chat template: give a Jinja file \(--chat-template FILE\)"),
    ],
)
def test_a_template_that_cannot_be_read_is_rejected(tokenizer, template, message, monkeypatch):
    monkeypatch.setattr(_chats, "SECONDS", 1.0)
    with pytest.raises(AttnscopeError, match=message) as caught:
        list(Chats([CHAT], template=template).read_with(tokenizer).windows(length=64))
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("chat", "message"),
    [
        ({"text": "a"}, "no field 'messages' or 'conversations'"),
        ({"messages": []}, "expected a chat: a list of at least one message"),
        ({"messages": [{"role": "narrator", "content": "a"}]}, "message 1: has the role 'narrator'"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "its content is not a string"),
        ({"messages": ["a"]}, "message 1: expected an object"),
    ],
)
def test_what_is_no_chat_is_rejected(chat, message):
    with pytest.raises(AttnscopeError, match=message):
        messages_of(chat, "a.jsonl:1")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"targets": ["a"]}, r"chats and cannot be used with target \(--target\)"),
        ({"by_line": True, "chat": True}, "by_line"),
        ({"texts": ["The tide is out."], "chat_template": "x"}, "the texts are not chats"),
        ({"texts": None, "chat": True}, "found no chat"),
        ({"texts": ["The tide is out."], "chat": True}, "text 1 is a string; expected a chat"),
        ({"texts": iter(["The tide is out."]), "chat": True}, "text 1 is a string; expected a chat"),
        ({"texts": [CHAT, "The tide is out."]}, "text 2: expected a chat: a list of at least one message"),
        ({"stride": 500}, "stride"),
    ],
)
def test_settings_that_do_not_go_with_chats_are_named(given, message):
    with pytest.raises(AttnscopeError, match=message):
        attnscope.scan(
            **{"texts": [CHAT], **({"chat_template": TEMPLATE} if "chat_template" not in given else {}), **given}
        )


def test_a_scan_of_chats_has_the_roles_as_groups(models, tmp_path):
    path = tmp_path / "chats.jsonl"
    path.write_text(json.dumps({"messages": CHAT}))
    found = attnscope.scan(models / "stories260K-llama", path, chat_template=TEMPLATE, statistics="entropy")
    assert found.group_query.values.tolist() == ["system", "user", "assistant", "tool", "template"]
    weight = found.group_weight.isel(window=0)
    there = weight.sel(group_query=["system", "user", "assistant", "template"])
    assert float(abs(there.sum("group_key") - 1).max()) < 1e-5
    assert weight.sel(group_query="tool").isnull().all()
    assert weight.sel(group_key="tool").isnull().all()
    assert float(weight.sel(group_query="system", group_key="assistant").max()) == 0  # which comes later
    assert found.equals(
        attnscope.scan(
            models / "stories260K-llama", [CHAT], chat_template=TEMPLATE, statistics="entropy"
        ).assign_coords(source=found.source)
    )
