"""Tags become directives, in any split; other text passes unchanged."""

from __future__ import annotations

import time
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_tts.directives import MAX_PAUSE_MS, Directive, Language, Pause, Prosody, Say, Style
from agent_tts.text.markup.inventory import BRACKETS, NAMES
from agent_tts.text.markup.reader import Item, MarkTag, MarkupReader
from agent_tts.text.markup.scan import MAX_TAG
from tests.examples import CUTS, examples, split
from tests.fuzz.targets import directed, read_markup
from tests.work import more_than_linear

EXCITED = Style("Emotion: excited.")
FAST = Prosody(speed=1.5)


def read(*parts: str) -> list[Item]:
    return read_markup(list(parts))[0]


def clean(text: str) -> str:
    """The text without tags, as an LLM should remember it."""
    return "".join(item if isinstance(item, str) else item.text for item in read(text) if isinstance(item, str | Say))


# fmt: off
TAGS = [
    '<break time="500ms"/>', "<break/>", "<break", '<emotion value="sad"/>', '<emotion value="', "<speed ratio='1.5'/>",
    "<spell>", "</spell>", '<sub alias="x y">', "</sub>", '<phoneme alphabet="ipa" ph="a">', "</phoneme>", "<speak>",
    "</speak>", "<p>", "</p>", "<s>", "</s>", '<prosody rate="fast" volume="+6dB">', "</prosody>", '<mark name="m"/>',
    '<lang xml:lang="de-DE">', "</lang>", "<think>", "</think>", "<tool_call>", "</tool_call>", "[laughs]", "[sad]",
    "[laughs](a)", "[1]", "<<a|b>>", "<<", "<", ">", "[", "]", "=", '"', "'", "/", "</", "<!--", "-->", "<?xml", "?>",
    "a", "AB1", " ", "  ", "\n", ". ", "Hello ", "you", "é", "\ud800", "\0", "x<y>z", "<|im_start|>", "<|tool_call>",
    "<tool_call|>", "<|channel|>", "<|message|>", "<|end|>", "<｜tool▁sep｜>", '<|"|>', "[TOOL_CALLS]", "[/THINK]",
    "analysis", "<![CDATA[", "]]>", "</answer>", "<start_of_turn>", "<invoke>", "<｜DSML｜think>", "</｜DSML｜think>",
]
NO_TAGS = [
    "a < b", "a<b>c", "x<y>z", "if (i<n && p>q)", "[1]", "[a](http://b.c)", "[laughs](http://b.c)", "a[music]", "[sic]",
    "<b>bold</b>", "H<sub>2</sub>O", "<mark>seen</mark>", "<br/>", "<breaking", "<break dance", "<a href='x'>", "<",
    "cout<<x|y>>z", "1 << 2", "a << b|c >> d", "<<", "[", "</", "<sp", "use <think> tags", "List<String> s", "<think",
    "[excitedly he said]", "<!important", "<!-- never closed", "<emotion", "Q&A", "AT&amp;T", "&", "a \\ b", "<|",
    "x <| y |> z", "<|>", "<x|y>", "<x|", "<channel>", "<tool|y>", "<turn |>", "[ARGS]...", "[think]", "[THINK",
    "a[b[0]]>5", "x]]", "use <answer> tags", "</3", "<｜", "</｜x｜y>", "[/", "[/b]", "<!y", "<?y", "<![if x]>",
    "\\{x\\}", "List<voice> a", "Option<Token> b", "the <invoke> method. It", "Use <metadata> here. Next", "a <desc> b",
]
# fmt: on
TEXTS = st.lists(st.sampled_from(TAGS) | st.text(max_size=2), max_size=25).map("".join)


@examples(300)
@given(TEXTS, CUTS)
def test_items_do_not_depend_on_the_split(text: str, cuts: list[int]) -> None:
    whole = directed(read(text))
    assert directed(read(*split(text, cuts))) == whole
    assert directed(read(*text)) == whole


@examples(200)
@given(st.text(st.sampled_from("ab <>[]()/=\"'1.!?\n"), max_size=60))
def test_text_without_names_of_tags_passes_unchanged(text: str) -> None:
    assert "".join(item for item in read(text) if isinstance(item, str)) == text
    assert all(isinstance(item, str) for item in read(text))


def test_anything_else_is_text() -> None:
    assert [read(text) for text in NO_TAGS] == [[text] for text in NO_TAGS]
    assert [clean(text) for text in NO_TAGS] == NO_TAGS
    assert [read(*text, "") for text in NO_TAGS] == [read(*text) for text in NO_TAGS]


@pytest.mark.parametrize(
    ("text", "items"),
    [
        # Cartesia
        ('<emotion value="excited"/>Hi', [EXCITED, "Hi"]),
        ('I am <emotion value="excited" /> so happy', ["I am ", EXCITED, "so happy"]),
        ('<speed ratio="1.5"/>Hi <volume ratio="0.5"/>you', [FAST, "Hi ", Prosody(1.5, 0.5), "you"]),
        ("Ha [laughter] ha", ["Ha ha"]),
        ("My code is <spell>AB1 2</spell>.", ["My code is ", Say("AB1", "A B 1"), " ", Say("2", "2"), "."]),
        ("I say <<t|ə|m>> now", ["I say ", Say("təm", None, "təm"), " now"]),
        # ElevenLabs
        ("[excited] Hi", [EXCITED, "Hi"]),
        ("[Whispers] Hi. [sighs] Yes", [Style("Whisper."), "Hi. Yes"]),
        ("One [long pause] two", ["One ", Pause(1_000), "two"]),
        ('A <phoneme alphabet="ipa" ph="təˈmeɪtoʊ">tomato</phoneme>!', ["A ", Say("tomato", None, "təˈmeɪtoʊ"), "!"]),
        ('A <phoneme alphabet="other" ph="x">tomato</phoneme>!', ["A tomato!"]),
        ('<phoneme alphabet="cmu-arpabet" ph="HH AH0 L OW1">hello</phoneme>', [Say("hello", None, "həˈloʊ")]),
        # SSML
        ("<speak>Hello.</speak>", ["Hello."]),
        ('<?xml version="1.0"?><speak version="1.1" xml:lang="en"><!-- no -->Hi</speak>', ["Hi"]),
        ("<p><s>One.</s><s>Two</s></p><p>Three</p>", ["One. Two\nThree"]),
        ('Read <sub alias="World Wide Web Consortium">W3C</sub> now', [
            "Read ", Say("W3C", "World Wide Web Consortium"), " now",
        ]),
        ('<say-as interpret-as="characters">NATO</say-as>', [Say("NATO", "N A T O")]),
        ('<say-as interpret-as="date">1/2</say-as>', ["1/2"]),
        ('A <prosody rate="fast" volume="+6dB" pitch="-2st">B</prosody> C', [
            "A ", Prosody(1.25, 10 ** (6 / 20), 2 ** (-2 / 12)), "B ", Prosody(), "C",
        ]),
        ('<prosody volume="50">a</prosody><prosody volume="+10">b</prosody><prosody volume="loud">c</prosody>', [
            Prosody(volume=0.5), "a", Prosody(volume=1.1), "b", Prosody(volume=1.5), "c",
        ]),
        ('<prosody rate="+20%" pitch="high">a</prosody><prosody rate="1.2" pitch="+10Hz">b</prosody>', [
            Prosody(1.2, pitch=1.15), "a", Prosody(1.2), "b",
        ]),
        ('<prosody rate="150%"><prosody volume="soft">a</prosody>b</prosody>c', [
            Prosody(1.5, 0.6), "a", Prosody(1.5), "b", Prosody(), "c",
        ]),
        ('Say <lang xml:lang="de-DE">hallo</lang> now', ["Say ", Language("de-DE"), "hallo ", Language(None), "now"]),
        ('<voice name="x"><emphasis level="strong">Hi</emphasis></voice>', ["Hi"]),
        ('One <mark name="m"/>two', ["One ", MarkTag("m", 4), "two"]),
        ('<mstts:express-as style="cheerful">Hi</mstts:express-as> you', [
            Style("Emotion: cheerful."), "Hi ", Style(None), "you",
        ]),
        ('<amazon:effect name="whispered">Hi</amazon:effect> <mstts:other a="b"/>you', [
            Style("Whisper."), "Hi ", Style(None), "you",
        ]),
        # language models
        ("<think>What <b>is</b> [1]?\n</think>\n\nHello.", ["Hello."]),
        ("Let me see. <think>hm</think>Yes.", ["Let me see. Yes."]),
        ('Sure. <tool_call>{"a": "<think>"}</tool_call> Done.', ["Sure. Done."]),
        ("</think>Hello.", ["Hello."]),
        ("Well,<think>hm</think>yes. One<think>", ["Well,<think>hm yes. One<think>"]),
        ("Yes.<think>hm</think>No", ["Yes. No"]),
        ("<answer>Yes.</answer><output>No</output>", ["Yes.No"]),
        ("<|im_start|>assistant\nHello<|im_end|>there.<start_of_turn>model yes", ["Hello there. yes"]),
        ("a <|reserved_1|>b<｜end▁of▁sentence｜>", ["a b"]),
        ('<|channel|>commentary<|message|>Let me see.<|end|><|start|>assistant to=f<|channel|>commentary<|message|>{}'
         "<|call|><|start|>assistant<|channel|>final<|message|>Sunny.", ["Let me see. Sunny."]),
        ('Ok.[TOOL_CALLS]f{"a": "<think>"}', ["Ok."]),
        ("<tool_call>a <|tool_sep|> b</tool_call>Yes", ["Yes"]),
        ("<seed:think>a</think>b</seed:think>c", ["c"]),
        # punctuation belongs to the word before it
        ("A <prosody rate='fast'>b</prosody>. C", ["A ", Prosody(1.25), "b. ", Prosody(), "C"]),
        ('A ("<lang lang="de">b</lang>"), c', ['A ("', Language("de"), 'b"), ', Language(None), "c"]),
        ("<speak>AT&#x26;T &#38; &lt;b></speak>", ["AT&T & <b>"]),
        ('<speak>a<prosody rate="fast">&#1;b</prosody></speak>', ["a", Prosody(1.25), "b"]),
        ('A <lang lang="de">"b"</lang> "c"', ["A ", Language("de"), '"b" ', Language(None), '"c"']),
    ],
)  # fmt: skip
def test_tags_of_the_dialects(text: str, items: list[Item]) -> None:
    assert read(text) == items
    assert directed(read(*text)) == directed(items)


@pytest.mark.parametrize(
    "tag",
    [
        *('<prosody rate="{}">', '<prosody volume="{}">', '<prosody pitch="{}">', '<speed ratio="{}"/>'),
        *('<volume ratio="{}"/>', '<break time="{}"/>', '<break strength="{}"/>', '<emotion value="{}"/>'),
        *(
            '<expr type="prosody" label="{}"/>',
            '<expr type="break" label="{}"/>',
            '<sub alias="{}"/>',
            '<mark name="{}"/>',
        ),
    ],
)
def test_any_value_is_taken(tag: str) -> None:
    """Fails with a number that no float holds: +9999dB."""
    numbers = ["", "1", "0", ".5", "9999", "999999", "1e9", "٤", "fast", "de", "a b"]
    for value in map("".join, product(["", "+", "-"], numbers, ["", "%", "dB", "st", "ms", "s"])):
        items = read(tag.format(value), "a")
        assert items[-1] == "a"
        for item in items:
            if isinstance(item, Prosody):
                assert 0.25 <= item.speed <= 4
                assert 0 <= item.volume <= 4
                assert 0.5 <= item.pitch <= 2
            elif isinstance(item, Pause):
                assert 0 < item.ms <= MAX_PAUSE_MS


@pytest.mark.parametrize(
    ("tag", "ms"),
    [
        *(('<break time="500ms"/>', 500), ("<break time='0.25s' />", 250), ('<BREAK  time = "1s">', 1_000)),
        *(('<break time="3600s"/>', MAX_PAUSE_MS), ("<break/>", 400), ('<break strength="x-strong"/>', 1_000)),
        *(("<break time=.5s></break>", 500),),
    ],
)
def test_pauses(tag: str, ms: int) -> None:
    assert read(f"a{tag}b") == ["a", Pause(ms), " b"]


@pytest.mark.parametrize(
    "tag", ['<break time="-1s"/>', '<break time="1m"/>', '<break time="1s/>', '<break time="٤s"/>', '<break time=""/>']
)
def test_a_pause_without_a_time_that_is_known_is_none(tag: str) -> None:
    assert read(f"a {tag} b") == ["a b"]


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ('Hi <emotion value="excited', "Hi "),
        ('Hi <emotion value="excited" there. You', "Hi there. You"),
        ('Hi <emotion value="sad <break time="1s"/>you', "Hi you"),
        ("Hi </emotion", "Hi "),
        ("Hi </emotion </p>you", "Hi you"),
        ('<emotion value="sad" ' + "x" * MAX_TAG + ">you", "x" * MAX_TAG + ">you"),
        ('Hi <sub alias="x">you', "Hi you"),
        ('Hi <sub alias="x">' + "you " * 50 + "</sub>", "Hi " + "you " * 50),
        ('<sub alias="x">a <emphasis>b</emphasis> c</sub> d', "a b c d"),
    ],
)
def test_a_tag_that_does_not_end_is_no_text(text: str, left: str) -> None:
    assert clean(text) == left


@pytest.mark.parametrize("length", range(MAX_TAG - 2, MAX_TAG + 4))
def test_the_longest_tag_does_not_depend_on_the_split(length: int) -> None:
    start = '<emotion value="sad" x="'
    tag = start + "y" * (length - len(start) - len('"/>')) + '"/>'
    assert len(tag) == length
    assert read(*tag, *"Hi") == read(f"{tag}Hi")


def test_a_flush_does_not_break_a_tag() -> None:
    reader = MarkupReader()
    items = [*reader.read('One <break time="'), *reader.flush(), *reader.read('1s"/> two'), *reader.end()]
    assert [item for item in items if item != ""] == ["One ", Pause(1_000), "two"]


@pytest.mark.parametrize("start", ["<amazon:", "</google:", "<voice"])
def test_a_name_without_an_end_is_text(start: str) -> None:
    """Fails without a limit: all of it is held, and read again with each character."""
    reader, text = MarkupReader(), start + "a" * 10_000
    said: list[Item] = []
    for char in text:
        said += reader.read(char)
        assert len(reader._held) <= MAX_TAG
    assert "".join(map(str, said + reader.end())) == text


def test_a_sentence_may_follow_a_word_directly_in_a_document() -> None:
    assert clean("<speak>Hello<s>World</s></speak>") == "Hello\nWorld"


def test_what_may_be_a_tag_waits_for_a_word_at_most() -> None:
    reader = MarkupReader()
    assert reader.read("so <br") == ["so "]
    assert reader.read("ead and butter") == ["<bread and butter"]
    assert reader.read(" [laugh") == [" "]
    assert reader.read("s at") == ["[laughs at"]
    assert reader.read(" <b") == [" "]
    assert reader.flush() == ["<b"]


def test_tags_at_the_end_change_nothing() -> None:
    assert read("Hi.", "<prosody rate='fast'>", "</prosody>", "[sad]", "</speak>") == ["Hi."]


def test_deep_nesting_is_bounded_and_ends() -> None:
    opened = "".join(f"<prosody rate='{120 + i % 7}%'>" for i in range(1_000))
    items = read(opened, "a", "</prosody>" * 1_000, "b")
    assert "".join(item for item in items if isinstance(item, str)) == "ab"


@examples(200)
@given(TEXTS)
def test_clean_characters_lie_where_they_were_sent(text: str) -> None:
    items, offsets = read_markup([text])
    place, before = 0, 0
    for item in items:
        said = item if isinstance(item, str) else item.text if isinstance(item, Say) else ""
        for ch in said:
            start, end = offsets.span(place, place + 1)
            assert before <= start < end == start + 1 <= len(text)
            assert text[start] == ch or ch.isspace() or isinstance(item, Say)
            before, place = start, place + 1
    assert place == offsets.length


@pytest.mark.parametrize("text", ['<sub alias="like so">\n</sub>', '<sub alias="like so"> ', '<sub alias="like so"/>'])
def test_what_is_said_for_nothing_lies_in_its_tag(text: str) -> None:
    _, offsets = read_markup([text])
    start, end = offsets.span(0, offsets.length)
    assert 0 <= start < end <= text.index(">")


def test_words_over_tags_span_them() -> None:
    text = '<s>un<emphasis>believ</emphasis>able</s> <break time="1s"/>yes'
    _, offsets = read_markup([text])
    (first, first_end), (last, last_end) = offsets.span(0, 12), offsets.span(13, 16)
    assert text[first:first_end] == "un<emphasis>believ</emphasis>able"
    assert text[last:last_end] == "yes"


# fmt: off
PARTS = [
    "<", "<<", "[", "<a", '<emotion a="', "</emotion ", "[laughs", "<<a|", "<!--", "<think>", "<s>", "[sad]a", "<!a",
    "<?a", "<![CDATA[", "]]>", "<|", "<|channel|>", "<｜", "[TOOL_CALLS]", "&#", "\\{", "<sub alias='x'>a",
]
# fmt: on


def test_work_is_linear() -> None:
    """In pieces of the length of tokens."""

    def come(part: str, chars: int) -> None:
        text, reader = part * chars, MarkupReader()
        for at in range(0, chars, 5):
            reader.read(text[at : at + 5])
        reader.end()

    assert not more_than_linear(PARTS, come, chars=600)


@pytest.mark.alone
def test_time_of_a_text_at_once_is_linear() -> None:
    """Ten times as much text takes at most 40 times as long. Mutation: a copy of the rest of the text at each tag."""

    def seconds(chars: int) -> float:
        text, reader = "".join((part * chars)[:chars] for part in PARTS), MarkupReader()
        began = time.thread_time()
        reader.read(text)
        reader.end()
        return time.thread_time() - began

    assert seconds(20_000) < 40 * min(seconds(2_000) for _ in range(3))


def test_names_are_known_by_their_starts() -> None:
    assert NAMES.may_become("say-")
    assert not NAMES.may_become("strong")
    assert "laughs harder" in BRACKETS
    assert "" not in NAMES


def test_directives_are_few() -> None:
    """What is set and unset between two words is not told."""
    items = read("a " + "<prosody rate='fast'></prosody>[sad][happy][neutral]" * 100 + " b")
    assert items == ["a b"]
    assert not any(isinstance(item, Directive) for item in items)
