"""What generated websites are written with: labels, names and numbers of four kinds of sites in four languages."""

from __future__ import annotations

import random

LANGUAGES = ("en", "de", "fr", "zh")
KINDS = ("conference", "education", "organization", "game")
ATTRIBUTES = ("person", "place", "date", "amount", "count")  # the last two are whole numbers
NUMBERS = ("amount", "count")

# Labels of what every site has.
COMMON = {
    "home": ("Home", "Startseite", "Accueil", "首页"),
    "more": ("Read more", "Mehr lesen", "Lire la suite", "更多"),
    "archive": ("Archive", "Archiv", "Archives", "存档"),
    "news": ("News", "Neuigkeiten", "Actualités", "新闻"),
    "members": ("Members area", "Mitgliederbereich", "Espace membres", "会员专区"),
    "old": ("Old timetable", "Alter Zeitplan", "Ancien calendrier", "旧日程"),
    "edition": ("Edition", "Ausgabe", "Édition", "年度"),
    "featured": ("Featured", "Im Fokus", "À la une", "精选"),
    "group": ("Group", "Gruppe", "Groupe", "分组"),
    "language": ("Other language", "Andere Sprache", "Autre langue", "其他语言"),
    "welcome": (
        "Welcome. Every figure for the current edition is on the page of the item itself.",
        "Willkommen. Alle Angaben zur aktuellen Ausgabe stehen auf der Seite des jeweiligen Eintrags.",
        "Bienvenue. Tous les chiffres de l'édition en cours figurent sur la page de chaque entrée.",
        "欢迎。当前年度的所有信息均在各条目的页面上。",
    ),
}
# kind -> (noun of its items, three sections, labels of ATTRIBUTES), each in LANGUAGES.
SITES = {
    "conference": (
        ("Workshop", "Workshop", "Atelier", "研讨会"),
        (
            ("Programme", "Programm", "Programme", "日程"),
            ("Calls", "Aufrufe", "Appels", "征稿"),
            ("Side events", "Rahmenprogramm", "Événements", "附属活动"),
        ),
        (
            ("chair", "Vorsitz", "présidence", "主席"),
            ("room", "Raum", "salle", "会场"),
            ("submission deadline", "Einreichungsfrist", "date limite", "截稿日期"),
            ("registration fee", "Teilnahmegebühr", "frais d'inscription", "注册费"),
            ("number of seats", "Zahl der Plätze", "nombre de places", "座位数"),
        ),
    ),
    "education": (
        ("Course", "Kurs", "Cours", "课程"),
        (
            ("Bachelor", "Bachelor", "Licence", "本科"),
            ("Master", "Master", "Master", "硕士"),
            ("Summer school", "Sommerschule", "École d'été", "暑期学校"),
        ),
        (
            ("lecturer", "Dozent", "enseignant", "讲师"),
            ("campus", "Standort", "campus", "校区"),
            ("start date", "Beginn", "date de début", "开课日期"),
            ("tuition", "Kursgebühr", "frais de scolarité", "学费"),
            ("number of credits", "Zahl der Leistungspunkte", "nombre de crédits", "学分"),
        ),
    ),
    "organization": (
        ("Project", "Projekt", "Projet", "项目"),
        (
            ("Research", "Forschung", "Recherche", "研究"),
            ("Aid", "Hilfe", "Aide", "援助"),
            ("Partnerships", "Partnerschaften", "Partenariats", "合作"),
        ),
        (
            ("lead", "Leitung", "responsable", "负责人"),
            ("seat", "Sitz", "siège", "所在地"),
            ("launch date", "Startdatum", "date de lancement", "启动日期"),
            ("budget", "Budget", "budget", "预算"),
            ("number of staff", "Zahl der Beschäftigten", "nombre d'employés", "员工数"),
        ),
    ),
    "game": (
        ("Update", "Update", "Mise à jour", "更新"),
        (
            ("Patch notes", "Patchnotizen", "Notes de mise à jour", "更新公告"),
            ("Events", "Ereignisse", "Événements", "活动"),
            ("Shop", "Laden", "Boutique", "商店"),
        ),
        (
            ("designer", "Gestalter", "concepteur", "设计师"),
            ("zone", "Zone", "zone", "区域"),
            ("release date", "Erscheinungsdatum", "date de sortie", "发布日期"),
            ("price in coins", "Preis in Münzen", "prix en pièces", "金币价格"),
            ("number of levels", "Zahl der Stufen", "nombre de niveaux", "关卡数"),
        ),
    ),
}
# Question forms: single; both; total; larger.
QUESTIONS = {
    "single": (
        "What is the {a} of {x} in the {year} edition?",
        "{x}, Ausgabe {year}: Wie lautet die Angabe „{a}“?",
        "Pour {x}, édition {year} : que vaut « {a} » ?",
        "{year}年度{x}的{a}是什么？",
    ),
    "both": (
        "What is the {a} of {x}, and what is the {a} of {y}, in the {year} edition?",
        "{x} und {y}, Ausgabe {year}: Wie lautet jeweils die Angabe „{a}“?",
        "Pour {x} puis pour {y}, édition {year} : que vaut « {a} » ?",
        "{year}年度{x}和{y}的{a}分别是什么？",
    ),
    "total": (
        "Add up the {a} of {x} and of {y} in the {year} edition. What is the total?",
        "{x} und {y}, Ausgabe {year}: Wie hoch ist die Summe der Angabe „{a}“?",
        "Pour {x} et {y}, édition {year} : quelle est la somme de « {a} » ?",
        "{year}年度{x}与{y}的{a}之和是多少？",
    ),
    "larger": (
        "Which has the larger {a} in the {year} edition, {x} or {y}?",
        "{x} oder {y}, Ausgabe {year}: Bei wem ist die Angabe „{a}“ größer?",
        "{x} ou {y}, édition {year} : lequel a « {a} » le plus grand ?",
        "{year}年度{x}和{y}中，哪一个的{a}更大？",
    ),
}
_MONTHS = {
    "en": "January February March April May June July August September October November December".split(),
    "de": "Januar Februar März April Mai Juni Juli August September Oktober November Dezember".split(),
    "fr": "janvier février mars avril mai juin juillet août septembre octobre novembre décembre".split(),
}
_NAMES = (
    "Tavira Maren Oslo Birka Calder Dunmore Elvas Farrow Gent Harlow Iseo Jura Kelso Lugano Mornay Naxos Orla Perth "
    "Quimper Ravello Skye Tromso Ulm Visby Wells Xanten Yarrow Zermatt Arden Bree"
).split()
_NAMES_ZH = (
    "青松 白云 长河 东湖 星海 明月 金桥 红叶 北辰 南山 清泉 远航 晨光 紫竹 银杏 "
    "碧波 天池 春雨 秋水 雪峰 飞鸿 锦绣 云台 龙泉 玉兰 海棠 朝阳 翠屏 石林 丹霞"
).split()
_FIRST = "Ada Bruno Clara Dario Edith Felix Greta Hugo Irma Jonas Katja Leon Mina Nils Olga Paul".split()
_LAST = "Brandt Castel Dumont Ekberg Fabre Grau Holm Ivers Jansen Keller Lindt Moreau Novak Olsen Petit Roth".split()
_PERSONS_ZH = "王磊 李娜 张伟 刘洋 陈静 杨帆 赵敏 黄勇 周杰 吴婷 徐强 孙悦 马超 朱丽 胡军 郭欣".split()
_PLACES = "Aurora Bellevue Cedar Dawn Ember Fjord Granite Harbour Indigo Juniper Kestrel Lagoon".split()
_PLACES_ZH = "一号厅 二号厅 东区 西区 南楼 北楼 河畔 山前 湖心 桥东 中心 新城".split()


def label(key: str, lang: str) -> str:
    """Returns a common label in a language."""
    return COMMON[key][LANGUAGES.index(lang)]


def attribute_label(kind: str, attribute: str, lang: str) -> str:
    """Returns what a kind of site calls an attribute."""
    return SITES[kind][2][ATTRIBUTES.index(attribute)][LANGUAGES.index(lang)]


def item_names(kind: str, lang: str, count: int, rng: random.Random) -> list[str]:
    """Returns different names for a site's items."""
    noun = SITES[kind][0][LANGUAGES.index(lang)]
    if lang == "zh":
        return [f"{name}{noun}" for name in rng.sample(_NAMES_ZH, count)]
    return [f"{noun} {name}" for name in rng.sample(_NAMES, count)]


def site_name(lang: str, rng: random.Random) -> str:
    """Returns a site's name."""
    return rng.choice(_NAMES_ZH) + "网" if lang == "zh" else f"{rng.choice(_LAST)} & {rng.choice(_NAMES)}"


def value(attribute: str, lang: str, year: int, rng: random.Random) -> str:
    """Returns a value of an attribute as a site of that language writes it."""
    if attribute == "person":
        return rng.choice(_PERSONS_ZH) if lang == "zh" else f"{rng.choice(_FIRST)} {rng.choice(_LAST)}"
    if attribute == "place":
        return rng.choice(_PLACES_ZH if lang == "zh" else _PLACES)
    if attribute == "amount":
        return str(rng.randrange(20, 2000) * 5)
    if attribute == "count":
        return str(rng.randrange(3, 400))
    day, month = rng.randrange(1, 29), rng.randrange(12)
    if lang == "zh":
        return f"{year}年{month + 1}月{day}日"
    return f"{day}{'.' if lang == 'de' else ''} {_MONTHS[lang][month]} {year}"
