"""The words that people, titles and contents are made of."""

FIRST_NAMES = (
    "Ada", "Amir", "Bela", "Chiara", "Dario", "Edith", "Farid", "Greta", "Hugo", "Ines", "Jonas", "Kaya", "Leon",
    "Mira", "Nils", "Olga", "Pablo", "Quinn", "Rosa", "Stefan", "Tara", "Umar", "Vera", "Wim", "Xenia", "Yara", "Zeno",
)  # fmt: skip
# The engine wants every first name once: it makes the home folder from it.
NAME_ENDINGS = ("", "lin", "rose", "mar", "bert", "vin", "dora", "nel", "wyn", "ren", "sol", "tim")
LAST_NAMES = (
    "Abel", "Berger", "Castro", "Dietz", "Engel", "Falk", "Gruber", "Hansen", "Ivers", "Jansen", "Klein", "Lorenz",
    "Marek", "Novak", "Olsen", "Petit", "Quist", "Ricci", "Sauer", "Thom", "Vogel", "Weiss", "Yilmaz", "Zander",
)  # fmt: skip
TOPICS = (
    "garden", "travel", "kitchen", "piano", "cycling", "chess", "budget", "reading", "hiking", "pottery", "astronomy",
    "sailing", "baking", "painting", "camping", "fitness", "archery", "history", "weaving", "robotics",
)  # fmt: skip
THINGS = (
    "rope", "lantern", "ladder", "basket", "notebook", "kettle", "compass", "blanket", "hammer", "bucket", "mirror",
    "whistle", "candle", "pencil", "ribbon", "saddle", "shovel", "teapot", "violin", "wallet", "anchor", "barrel",
)  # fmt: skip
VERBS = ("buy", "clean", "repair", "lend", "paint", "sort", "fetch", "sell", "label", "weigh", "pack", "order")
RELATIONSHIPS = ("friend", "coworker", "neighbor", "cousin")
GENRES = ("jazz", "folk", "rock", "classical", "pop")
