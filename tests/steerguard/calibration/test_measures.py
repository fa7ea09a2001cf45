import pytest

from steerguard.calibration.measures import Measure, MeasureError, add_measure, find_measure, measure_names

HAPPY = ("How are you?", "I am wonderful, what a lovely and happy day!")
SAD = ("How are you?", "I am terrible, what an awful and sad day.")


def test_sentiment_is_vaders():
    measure = find_measure("sentiment")
    happy, sad = measure.score([HAPPY, SAD])
    assert happy > 0.5
    assert sad < -0.5
    assert (measure.sign, find_measure("sentiment:lower").sign) == (1.0, -1.0)
    assert measure.source.startswith("vaderSentiment 3.")


def test_language_is_the_probability_of_one():
    texts = [("q", "Bonjour, je voudrais un café et une tarte aux pommes, s'il vous plaît."), ("q", HAPPY[1])]
    french, english = find_measure("language:fr").score(texts)
    assert french > 0.9
    assert english < 0.1


def test_words_and_json_are_counted():
    assert find_measure("words").score([("q", "one  two\nthree"), ("q", "")]) == [3.0, 0.0]
    texts = ['{"a": [1]}', " [1, 2]\n", '{"a": 1', '"text"', "Here you are: {}", "[" * 100_000]
    assert find_measure("json").score([("q", text) for text in texts]) == [1.0, 1.0, 0.0, 0.0, 0.0, 0.0]


def test_lix_is_easy_for_easy_text():
    easy, hard, empty = find_measure("lix").score(
        [
            ("q", "The cat sat. The dog ran. We all saw it."),
            (
                "q",
                "Notwithstanding considerable administrative complications, international organizations established.",
            ),
            ("q", ""),
        ]
    )
    # 10 words in 3 sentences, none of more than six letters: 10 / 3.
    assert easy == pytest.approx(10 / 3, abs=0.1)
    assert hard > 60
    assert empty == 0.0


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        ("charm", "measure: expected one of json, language, lix, sentiment, words, found 'charm'"),
        ("words:more", "measure words: expected higher or lower after the colon, found 'more'"),
        ("language", "measure language: expected a code such as language:fr, found ''"),
        ("language:xx", "measure language: expected a code such as language:fr, found 'xx'"),
    ],
)
def test_a_measure_that_there_is_not_is_refused(asked, reason):
    with pytest.raises(MeasureError) as caught:
        find_measure(asked)
    assert str(caught.value).startswith(reason)


def test_others_can_be_added_once(monkeypatch):
    monkeypatch.setattr("steerguard.calibration.measures._makers", {})
    shouting = Measure(
        "shouting", "higher", "letters", "counted", lambda all: [sum(map(str.isupper, a)) for _, a in all]
    )
    add_measure("shouting", lambda detail: shouting)
    assert measure_names() == ["shouting"]
    assert find_measure("shouting").score([("q", "HI there")]) == [2]
    with pytest.raises(ValueError, match="expected a name that isn't taken"):
        add_measure("shouting", lambda detail: shouting)
