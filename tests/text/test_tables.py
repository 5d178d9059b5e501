"""Numbers, money, dates, times and units in the languages of Europe, and what agrees with them."""

from __future__ import annotations

from itertools import product

import pytest

from tests.text.test_runs import say
from tests.work import more_than_linear


@pytest.mark.parametrize(
    ("written", "spoken"),
    [
        ("1 Euro, 1 €, 101 Euro, 1,50 €", "ein Euro, ein Euro, einhundertein Euro, ein Euro fünfzig Cent"),
        ("1 Std., 1 Min. lang, 2 h", "eine Stunde, eine Minute lang, zwei Stunden"),
        ("3 Millionen €, 1 Million Euro, 2 Mio. Euro", "drei Millionen Euro, eine Million Euro, zwei Millionen Euro"),
        ("am 3. Tag, der 1. Mai, 3. Mai", "am dritten Tag, der erste Mai, dritter Mai"),
        (
            "am 5. März 2024, 3.5.2024",
            "am fünften März zweitausendvierundzwanzig, dritter Mai zweitausendvierundzwanzig",
        ),
        ("am 3.5. um 10 Uhr, Version 3.5.", "am dritten Mai um zehn Uhr, Version 3.5."),
        ("Es waren 3. Dann kam einer.", "Es waren drei. Dann kam einer."),
        ("im Jahr 1984, die 1990er", "im Jahr neunzehnhundertvierundachtzig, die neunzehnhundertneunziger"),
        ("um 15 Uhr, 15:30, 1:05 Uhr", "um fünfzehn Uhr, fünfzehn Uhr dreißig, ein Uhr fünf"),
        ("1 Katze, 1 Apfel, 21 Katzen", "eine Katze, ein Apfel, einundzwanzig Katzen"),
        ("mit 1 Hund, in 1 Std., von 1 bis 3", "mit einem Hund, in einer Stunde, von eins bis drei"),
        (
            "am 2026-11-23T14:05:07Z",
            "am dreiundzwanzigsten November zweitausendsechsundzwanzig, vierzehn Uhr fünf und sieben Sekunden U T C",
        ),
        (
            "-5 °C, 50 %, 1.234,56",
            "minus fünf Grad Celsius, fünfzig Prozent, eintausendzweihundertvierunddreißig Komma fünf sechs",
        ),
        ("3-5, 1/2", "drei bis fünf, ein halb"),
    ],
)
def test_german(written: str, spoken: str) -> None:
    assert say(written, "de") == spoken


@pytest.mark.parametrize(
    ("written", "spoken"),
    [
        (
            "3,14, 3.5, 1 000 000 €, 80 €",
            "trois virgule quatorze, trois virgule cinq, un million d'euros, quatre-vingts euros",
        ),
        ("2 millions €, 5,50 €, 21 %", "deux millions d'euros, cinq euros cinquante centimes, vingt et un pour cent"),
        (
            "1,5 km, 1 m², 12 m², -5 °C",
            "un virgule cinq kilomètres, un mètre carré, douze mètres carrés, moins cinq degrés Celsius",
        ),
        ("15h30, 1h, 21 heures, 15:00", "quinze heures trente, une heure, vingt et une heures, quinze heures"),
        ("05/03/2024, le 1er mars, 2e, 1re", "cinq mars deux mille vingt-quatre, le premier mars, deuxième, première"),
        ("1 personne, 1 homme, 21 personnes", "une personne, un homme, vingt et une personnes"),
        ("06 12 34 56 78", "zéro six, douze, trente-quatre, cinquante-six, soixante-dix-huit"),
        ("3-5, 1/2", "trois à cinq, un demi"),
        ("François Ier, Louis XIV", "François premier, Louis quatorze"),
    ],
)
def test_french(written: str, spoken: str) -> None:
    assert say(written, "fr") == spoken


@pytest.mark.parametrize(
    ("written", "spoken"),
    [
        ("3,14, 3.5, 1.000.000 €, 21.000", "tres coma catorce, tres coma cinco, un millón de euros, veintiún mil"),
        (
            "2 millones €, 5,50 €, 21 %",
            "dos millones de euros, cinco euros con cincuenta céntimos, veintiuno por ciento",
        ),
        ("21 km, -5 °C, 100 km/h", "veintiún kilómetros, menos cinco grados Celsius, cien kilómetros por hora"),
        ("15:30, 1:05, 15:00, 15 h", "quince y treinta, una y cinco, quince, quince horas"),
        (
            "05/03/2024, 1 de enero de 2024",
            "cinco de marzo de dos mil veinticuatro, primero de enero de dos mil veinticuatro",
        ),
        ("2º, 3ª, 1er, 11º", "segundo, tercera, primer, undécimo"),
        ("1 persona, 1 libro, 200 personas, 31 días", "una persona, un libro, doscientas personas, treinta y un días"),
        ("1 y 2, Sr. Gómez", "uno y dos, señor Gómez"),
    ],
)
def test_spanish(written: str, spoken: str) -> None:
    assert say(written, "es") == spoken


@pytest.mark.parametrize(
    ("written", "spoken"),
    [
        ("3,14, 1.000.000 €, 2 mln €", "tre virgola quattordici, un milione di euro, due milioni di euro"),
        (
            "5,50 €, 21 %, 1 km, 5 m²",
            "cinque euro e cinquanta centesimi, ventuno per cento, un chilometro, cinque metri quadrati",
        ),
        ("15:30, 1:05, alle 15.30", "quindici e trenta, una e cinque, alle quindici e trenta"),
        ("05/03/2024, 1º marzo, 2ª", "cinque marzo duemilaventiquattro, primo marzo, seconda"),
        ("1 persona, 1 libro, 1 e 2", "una persona, un libro, uno e due"),
    ],
)
def test_italian(written: str, spoken: str) -> None:
    assert say(written, "it") == spoken


@pytest.mark.parametrize(
    ("written", "spoken"),
    [
        ("3,14, 1.000.000 €, R$ 5,50", "três vírgula catorze, um milhão de euros, cinco reais e cinquenta centavos"),
        ("16, 21 %, 2 milhões €", "dezesseis, vinte e um por cento, dois milhões de euros"),
        ("15h30, 15:30, 1h, 2h", "quinze e trinta, quinze e trinta, uma hora, duas horas"),
        ("05/03/2024, 1º de janeiro", "cinco de março de dois mil e vinte e quatro, primeiro de janeiro"),
        ("2 pessoas, 2 livros, 22 casas, 1 e 2", "duas pessoas, dois livros, vinte e duas casas, um e dois"),
        ("2º, 3ª", "segundo, terceira"),
    ],
)
def test_portuguese(written: str, spoken: str) -> None:
    assert say(written, "pt") == spoken


@pytest.mark.parametrize(
    ("written", "spoken"),
    [
        (
            "1 км, 2 км, 5 км, 1,5 км",
            "один километр, два километра, пять километров, одна целая пять десятых километра",
        ),
        ("21 %, 22 руб., 5,50 ₽", "двадцать один процент, двадцать два рубля, пять рублей пятьдесят копеек"),
        ("2 млн руб., 3 тыс. человек", "два миллиона рублей, три тысячи человек"),
        ("15:30, 10:05, 15:00", "пятнадцать тридцать, десять ноль пять, пятнадцать часов"),
        ("5 марта 2024 года", "пятого марта две тысячи двадцать четвёртого года"),
        ("05.03.2024", "пятого марта две тысячи двадцать четвёртого года"),
        ("в 2024 году, 1984 год", "в две тысячи двадцать четвёртом году, тысяча девятьсот восемьдесят четвёртый год"),
        ("с 2003 г. по 2005 г. включительно", "с две тысячи третьего года по две тысячи пятый год включительно"),
        ("5-й, 3-го, 2-я", "пятый, третьего, вторая"),
        ("1 книга, 2 книги, 2 стола, 1 окно", "одна книга, две книги, два стола, одно окно"),
        ("-5 °C, № 5", "минус пять градусов Цельсия, номер пять"),
    ],
)
def test_russian(written: str, spoken: str) -> None:
    assert say(written, "ru") == spoken


def test_a_point_after_a_unit_ends_the_sentence_if_a_capital_follows() -> None:
    assert say("It is 5 in. long.", "en") == "It is five inches long."
    assert say("It is 5 in. Then", "en") == "It is five inches. Then"


def test_work_is_linear() -> None:
    languages = ["de", "es", "fr", "it", "pt", "ru", "zh", "ja", "ko"]
    runs = ["1 ", "1", "5 € ", "3. ", "1 000 ", "2024年", "1.1.", "-", "4111 ", "5-3=", "DE89 ", "("]

    def read(case: tuple[str, str], chars: int) -> None:
        language, run = case
        say((run * chars)[:chars], language)

    assert not more_than_linear(product(languages, runs), read, chars=100)
