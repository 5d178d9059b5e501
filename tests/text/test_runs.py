"""Chinese, Japanese and Korean: numbers within the text, with what is counted."""

from __future__ import annotations

import pytest

from agent_tts.text.feed import Reader, Reading
from agent_tts.text.spoken.runs import MAX_RUN


def say(written: str, language: str) -> str:
    out: list[str] = []
    normalizer = Reader(Reading(clean=False, normalize=language), lambda ch, _: out.append(ch))
    for offset, ch in enumerate(written):
        normalizer.push(ch, offset)
    normalizer.flush(len(written))
    return "".join(out)


@pytest.mark.parametrize(
    ("written", "spoken"),
    [
        # counts
        ("1次，2次，2个，3本", "一次，两次，两个，三本"),
        ("第2次，2楼，2号，2月2日", "第二次，二楼，二号，二月二日"),
        ("12个、22个、200个、2000个、2万人", "十二个、二十二个、二百个、两千个、两万人"),
        ("买了2 个，2个月，2小时，2公里", "买了两 个，两个月，两小时，两公里"),
        ("２０２４年，５％", "二零二四年，百分之五"),
        # numbers
        ("10、110、1001、1010、10001、100000000", "十、一百一十、一千零一、一千零一十、一万零一、一亿"),
        ("1,234,567人，3.14，-8", "一百二十三万四千五百六十七人，三点一四，负八"),
        ("3.5万元，20亿，0.5", "三点五万元，二十亿，零点五"),
        ("12345678901234567", "一二三四五六七八九零一二三四五六七"),
        ("98.5%、-3%、1/2杯、3-5个、3~5天", "百分之九十八点五、负百分之三、二分之一杯、三到五个、三到五天"),
        ("比分3:2，又3-1", "比分三比二，又三比一"),
        ("1.2.3版", "一点二点三版"),
        # dates and times
        ("2024年3月5日，08年，1000年历史，90后", "二零二四年三月五日，零八年，一千年历史，九零后"),
        ("2024-03-05，2024/3/5", "二零二四年三月五日，二零二四年三月五日"),
        ("2019-2023年，2019年-2023年", "二零一九到二零二三年，二零一九到二零二三年"),
        ("下午3:30，2:00，12:05:09", "下午三点三十分，两点，十二点零五分九秒"),
        # money and units
        ("¥12.50，￥2，$5.5亿，-€3", "十二点五元，两元，五点五亿美元，负三欧元"),
        ("-5℃到25°C，5km/h，跑了5 km，2kg", "零下五摄氏度到二十五摄氏度，五公里每小时，跑了五公里，两公斤"),
        # telephone, codes
        ("13812345678，010-12345678", "幺三八，幺二三四，五六七八，零幺零，幺二三四五六七八"),
        ("验证码123456", "验证码一二三四五六"),
        # names
        ("GPT-4、A4纸、v1.2.3、B2B", "GPT-4、A4纸、v1.2.3、B2B"),
        ("没有数字，ABC。", "没有数字，ABC。"),
    ],
)
def test_chinese(written: str, spoken: str) -> None:
    assert say(written, "zh") == spoken


@pytest.mark.parametrize(
    ("written", "spoken"),
    [
        ("1回、2個、3本、20歳、2人", "一回、二個、三本、二十歳、二人"),
        ("2024年3月5日の15:30、9:05、9:00", "二千二十四年三月五日の十五時三十分、九時五分、九時"),
        ("2024/03/05", "二千二十四年三月五日"),
        ("¥1,200、$3.5、¥5億、100万円", "千二百円、三点五ドル、五億円、百万円"),
        ("5%、-3℃、10km、1.5L、0.5", "五パーセント、マイナス三度、十キロメートル、一点五リットル、ゼロ点五"),
        ("03-1234-5678", "ゼロ三、一二三四、五六七八"),
        ("3〜5人、1/2、3-2、GPT-4", "三から五人、二分の一、三対二、GPT-4"),
    ],
)
def test_japanese(written: str, spoken: str) -> None:
    assert say(written, "ja") == spoken


@pytest.mark.parametrize(
    ("written", "spoken"),
    [
        ("사과 2개와 책 3권, 20살, 21명이, 101개", "사과 두 개와 책 세 권, 스무 살, 스물한 명이, 백 한 개"),
        ("1번, 5번째, 3시간, 24시간", "한 번, 다섯 번째, 세 시간, 스물네 시간"),
        ("3개월, 3층, 10분, 20대", "삼개월, 삼층, 십분, 이십대"),
        ("3시 30분에, 15시에, 15:30", "세 시 삼십분에, 십오 시에, 십오 시 삼십 분"),
        ("2024년 6월 5일, 10월", "이천이십사년 유월 오일, 시월"),
        ("2024-03-05", "이천이십사년 삼월 오일"),
        ("5,000원, ₩5,000, $3.5, 100만 원", "오천원, 오천 원, 삼 점 오 달러, 백만 원"),
        ("5%, -3℃, 10km를, 0.5", "오 퍼센트, 마이너스 삼 도, 십 킬로미터를, 영 점 오"),
        ("010-1234-5678", "공일공, 일이삼사, 오육칠팔"),
        ("3~5명, 1/2, GPT-4", "세 명에서 다섯 명, 이분의 일, GPT-4"),
    ],
)
def test_korean(written: str, spoken: str) -> None:
    assert say(written, "ko") == spoken


@pytest.mark.parametrize("language", ["zh", "ja", "ko"])
def test_a_run_without_end_is_not_held(language: str) -> None:
    out: list[str] = []
    normalizer = Reader(Reading(clean=False, normalize=language), lambda ch, _: out.append(ch))
    for offset in range(1_000):
        normalizer.push("a1"[offset > 0], offset)
    assert len("".join(out)) >= 1_000 - MAX_RUN
