"""The words for shapes, colors, places and numbers, and their meanings."""

SHAPES = ["circle", "square", "triangle", "rectangle", "oval", "diamond", "star", "heart",
          "pentagon", "hexagon", "cross", "ring", "crescent", "arrow"]  # fmt: skip
SHAPE_WORDS = {
    "circle": ["circle", "circle", "disc"],
    "oval": ["oval", "ellipse"],
    "diamond": ["diamond", "rhombus"],
    "cross": ["cross", "plus sign"],
    "ring": ["ring", "ring", "donut shape"],
    "crescent": ["crescent", "crescent shape"],
    "arrow": ["arrow", "arrow pointing right"],
}

# sRGB. Shapes take the twelve basic ones three times as often as the seven behind them in `SHAPE_COLORS`.
BASIC_COLORS = {
    "red": (220, 40, 40), "orange": (250, 140, 20), "yellow": (250, 215, 40), "green": (40, 165, 70),
    "blue": (40, 95, 220), "purple": (135, 65, 195), "pink": (245, 130, 180), "brown": (130, 80, 45),
    "black": (20, 20, 20), "white": (255, 255, 255), "gray": (140, 140, 145), "cyan": (45, 200, 210),
}  # fmt: skip
MORE_COLORS = {
    "light blue": (175, 215, 250), "light green": (185, 235, 180), "light pink": (252, 215, 228),
    "light yellow": (253, 245, 190), "light gray": (215, 215, 220), "dark blue": (20, 35, 100),
    "dark green": (15, 80, 45), "dark red": (125, 15, 25), "dark gray": (70, 70, 75),
    "lavender": (205, 190, 245), "beige": (240, 225, 195), "teal": (15, 125, 130),
}  # fmt: skip
COLORS = {**BASIC_COLORS, **MORE_COLORS}
COLOR_WORDS = {
    "gray": ["gray", "grey"],
    "purple": ["purple", "purple", "violet"],
    "cyan": ["cyan", "turquoise"],
    "dark blue": ["dark blue", "dark blue", "navy", "navy blue"],
    "light blue": ["light blue", "light blue", "sky blue", "pale blue"],
    "light gray": ["light gray", "light grey"],
    "dark gray": ["dark gray", "dark grey", "charcoal"],
    "light pink": ["light pink", "pale pink"],
    "light green": ["light green", "pale green", "mint green"],
    "light yellow": ["light yellow", "pale yellow", "cream"],
    "dark red": ["dark red", "maroon"],
}
SHAPE_COLORS = [*BASIC_COLORS] * 3 + ["light blue", "dark blue", "light green", "dark green", "dark red", "teal", "light pink"]
BACKGROUNDS = [*BASIC_COLORS] * 2 + [*MORE_COLORS]
# An emoji whose name has one of these is not drawn in another color.
OWN_COLOR = set("red orange yellow green blue purple pink brown black white gray grey cyan gold silver bronze".split())

# Center of a thing, in parts of the image: (x, y).
PLACES = {
    (0.24, 0.24): ["in the top left corner", "in the top left", "in the upper left corner"],
    (0.76, 0.24): ["in the top right corner", "in the top right", "in the upper right corner"],
    (0.24, 0.76): ["in the bottom left corner", "in the bottom left", "in the lower left corner"],
    (0.76, 0.76): ["in the bottom right corner", "in the bottom right", "in the lower right corner"],
    (0.24, 0.5): ["on the left", "on the left side", "at the left"],
    (0.76, 0.5): ["on the right", "on the right side", "at the right"],
    (0.5, 0.24): ["at the top", "near the top"],
    (0.5, 0.76): ["at the bottom", "near the bottom"],
    (0.5, 0.5): ["in the center", "in the middle", "in the centre"],
}
NUMBERS = {2: ["two", "two", "2", "a pair of"], 3: ["three", "three", "3", "some", ""], 4: ["four", "four", "4"],
           5: ["five", "five", "5"], 6: ["six", "six", "6"]}  # fmt: skip

UNKNOWN = "question mark"  # the emoji for words that mean nothing here


def color_distance(a: str, b: str) -> float:
    """Euclidean, in sRGB."""
    return sum((x - y) ** 2 for x, y in zip(COLORS[a], COLORS[b])) ** 0.5


def with_article(phrase: str) -> str:
    first = phrase.split()[0].lower()
    vowel = first[0] in "aeiou" and not first.startswith(("uni", "ufo", "uku", "eu"))
    return ("an " if vowel else "a ") + phrase


def plural(noun: str) -> str:
    for link in (" of ", " with ", " in ", " from "):
        if link in noun:
            first, rest = noun.split(link, 1)
            return plural(first) + link + rest
    if noun.endswith(("s", "x", "ch", "sh")):
        return noun + "es"
    if noun.endswith("y") and noun[-2] not in "aeiou":
        return noun[:-1] + "ies"
    return noun + "s"
