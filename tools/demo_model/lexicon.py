"""The words the little stories are made of.

Every table is an immutable constant.  Grammar that depends on a word (its preposition, the spots
one can search at a place, the past tense of a skill) stands next to the word, so that sentences
built from it agree.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Place:
    """Somewhere a story happens: its noun, its preposition and spots where things can hide."""

    noun: str
    prep: str
    spots: tuple[str, ...]

    @property
    def where(self) -> str:
        """The place as an adverbial, such as ``in the forest``."""
        return f"{self.prep} the {self.noun}"


@dataclass(frozen=True)
class Weather:
    """The weather of the day: how it begins, and how the story may recall it at its end."""

    adjective: str
    begins: str
    ends: str


@dataclass(frozen=True)
class Trait:
    """A quality of character, with sentences that show it (``{n}``, ``{he}`` are slots)."""

    word: str
    notes: tuple[str, ...]


# Tables of prose, wrapped by hand.
# fmt: off
GIRLS = ("girl", "princess", "queen", "witch", "mermaid", "grandmother")
BOYS = ("boy", "prince", "king", "wizard", "pirate", "grandfather")
EITHER = ("baker", "farmer", "fisherman", "knight", "painter", "gardener", "sailor", "tailor")
WONDERS = ("dragon", "robot", "giant", "fairy", "unicorn", "ghost", "snowman", "elf", "troll")
ANIMALS = (
    "fox", "bear", "rabbit", "mouse", "owl", "cat", "dog", "frog", "duck", "hedgehog", "squirrel",
    "turtle", "elephant", "lion", "tiger", "monkey", "penguin", "wolf", "deer", "badger", "otter",
    "beaver", "goat", "sheep", "pig", "cow", "horse", "donkey", "hen", "goose", "sparrow", "crow",
    "parrot", "snail", "bee", "ant", "butterfly", "ladybird", "mole", "bat", "whale", "crab",
    "giraffe", "zebra", "kangaroo", "koala", "panda", "camel", "puppy", "kitten", "seal", "spider",
    "lizard", "raccoon", "dolphin", "octopus", "bird", "fish", "lamb", "pony", "swan", "chicken",
)
KINDS = GIRLS + BOYS + EITHER + WONDERS + ANIMALS

GIRL_NAMES = (
    "Mia", "Lily", "Anna", "Rosa", "Clara", "Ella", "Nora", "Ruby", "Daisy", "Ivy", "Olga",
    "Hazel", "Luna", "Tilly", "Wanda", "Zoe", "Pearl", "Greta", "Fern", "Bella", "Sara", "Poppy",
    "Molly", "Emma", "Lucy", "Maya", "Nina", "Freya", "Dora", "Kate",
)
BOY_NAMES = (
    "Ben", "Tom", "Max", "Leo", "Sam", "Oscar", "Felix", "Hugo", "Otto", "Theo", "Finn", "Jack",
    "Milo", "Bruno", "Oliver", "Henry", "Ned", "Rufus", "Walter", "Jonas", "Tim", "Gus", "Peter",
    "Anton", "Emil", "Carl", "Noah", "Victor", "Paul", "Alfie",
)
PET_NAMES = (
    "Pip", "Biscuit", "Button", "Pepper", "Maple", "Nutmeg", "Pebble", "Clover", "Ziggy",
    "Coco", "Muffin", "Bramble", "Pickle", "Sunny", "Whisper", "Acorn", "Thistle", "Tumble",
    "Cinder", "Marble", "Waffle", "Dusty", "Bubbles", "Sky", "Scout", "Rusty", "Snowy", "Copper",
)
NAME_HEADS = (
    "Ba", "Be", "Bo", "Da", "Do", "Fa", "Fi", "Ga", "Ka", "Ki", "La", "Le", "Li", "Lo", "Ma", "Me",
    "Mo", "Na", "No", "Pa", "Pi", "Po", "Ra", "Ro", "Sa", "Si", "Ta", "Ti", "To", "Va", "Wi", "Zu",
)
NAME_TAILS = (
    "bo", "della", "do", "fi", "ko", "la", "li", "lo", "lina", "ma", "mi", "mo", "na", "nka", "no",
    "pa", "po", "ra", "ri", "ro", "sa", "ssi", "ta", "to", "tti", "va", "vi", "wen", "za", "zo",
)

TRAITS = (
    Trait("brave", ("{He} was not afraid of [anything|the dark|loud noises|long walks].",
                    "Everyone knew how brave {n} was.")),
    Trait("shy", ("{He} [often hid|liked to hide] when [visitors|strangers] came.",
                  "{He} spoke so softly that few could hear {him}.")),
    Trait("curious", ("{He} wanted to know [everything|how everything worked].",
                      "{He} asked questions all day long.")),
    Trait("clever", ("{He} could [solve any riddle|find an answer to almost anything].",
                     "{He} always had a good idea.")),
    Trait("kind", ("{He} [always had|had] a warm word for everyone.",
                   "{He} never walked past someone who needed help.")),
    Trait("lazy", ("{He} liked to [lie in the sun|sleep until noon|rest] and do nothing.",
                   "Work could always wait until tomorrow, {n} thought.")),
    Trait("grumpy", ("{He} hardly ever smiled.", "Nothing was ever right for {n}.")),
    Trait("gentle", ("{He} would not hurt a fly.", "Even the smallest beetle was safe near {n}.")),
    Trait("silly", ("{He} made everyone laugh.", "{He} wore a [spoon|sock|pancake] as a hat.")),
    Trait("quiet", ("{He} liked to listen more than to talk.", "{He} moved without a sound.")),
    Trait("cheerful", ("{He} sang from morning until night.", "{He} smiled even on rainy days.")),
    Trait("proud", ("{He} thought that {he} was the best at everything.",
                    "{He} did not like to ask for help.")),
    Trait("tiny", ("{He} was so small that {he} could sleep in a [teacup|shoe|flower].",
                   "Most people did not even notice {him}.")),
    Trait("sleepy", ("{He} yawned [all day long|at breakfast, at lunch and at dinner].",
                     "{He} could fall asleep anywhere.")),
    Trait("lonely", ("{He} had no one to [talk to|play with].",
                     "The days were long for {n}, and the evenings were longer.")),
    Trait("careful", ("{He} looked twice before every "
                      "step.", "{He} never forgot to lock the door.")),
    Trait("clumsy", ("{He} often tripped over {his} own feet.",
                     "{He} dropped almost everything {he} picked up.")),
    Trait("patient", ("{He} could wait for [hours|a whole day] without complaining.",
                      "{He} was never in a hurry.")),
    Trait("friendly", ("{He} said hello to everyone {he} met.", "{He} waved at everyone.")),
    Trait("honest", ("{He} always told the truth.", "Nobody had ever heard {n} tell a lie.")),
    Trait("playful", ("{He} turned everything into a game.", "{He} loved to jump and run.")),
    Trait("happy", ("{He} was happy with [very little|what {he} had].", "{He} laughed a lot.")),
    Trait("sad", ("{He} sighed a lot, and nobody knew "
                  "why.", "{He} had not laughed for a long time.")),
    Trait("stubborn", ("When {he} said no, {he} meant no.", "{He} never gave up an idea.")),
    Trait("greedy", ("{He} always wanted more than {he} had.", "{He} never shared anything.")),
    Trait("old", ("{He} had seen many summers and many winters.", "{He} knew many old songs.")),
    Trait("young", ("{He} still had a lot to learn.", "The whole world was new to {him}.")),
    Trait("hungry", ("{He} thought about food all day.", "{He} could eat ten pies for breakfast.")),
)
FRIEND_TRAITS = (
    "wise", "old", "kind", "friendly", "gentle", "clever", "cheerful", "young", "quiet", "small",
    "strong", "funny", "busy", "patient", "shy", "merry",
)

PLACES = (
    Place("forest", "in", ("under a fallen log", "behind an old oak", "among the ferns",
                           "inside a hollow tree", "beneath the mushrooms")),
    Place("garden", "in", ("behind the shed", "among the cabbages", "under the rose bush",
                           "inside the watering can", "beside the well")),
    Place("village", "in", ("behind the bakery", "under a market stall", "beside the fountain",
                            "in front of the school", "on the church steps")),
    Place("town", "in", ("under a bench", "behind the bakery", "next to the library",
                         "beside the clock tower", "on the bridge")),
    Place("city", "in", ("under a parked car", "on the steps of the museum", "beside a lamp post",
                         "in the park", "at the bus stop")),
    Place("hill", "on", ("behind a big stone", "in the long grass", "under a lonely tree",
                         "beside the path", "inside a rabbit hole")),
    Place("mountain", "on", ("behind a grey rock", "in a small cave", "beside a cold stream",
                             "under a pine tree", "at the edge of the snow")),
    Place("beach", "on", ("under an old boat", "behind a dune", "in a rock pool",
                          "beneath the seaweed", "next to a sandcastle")),
    Place("river", "by", ("between the reeds", "under the bridge", "behind a willow",
                          "on a flat stone", "in the mud")),
    Place("lake", "by", ("between the reeds", "under the landing stage", "in a wooden boat",
                         "behind the boathouse", "among the water lilies")),
    Place("meadow", "in", ("among the daisies", "under a haystack", "behind the fence",
                           "in the tall grass", "beside the brook")),
    Place("desert", "in", ("behind a cactus", "under the sand", "beside a dry bush",
                           "in the shade of a rock", "next to a small well")),
    Place("castle", "in", ("behind the throne", "under the stairs", "in the tower",
                           "inside a suit of armour", "in the kitchen")),
    Place("jungle", "in", ("under a giant leaf", "behind a waterfall", "among the vines",
                           "in a banana tree", "beside a muddy pond")),
    Place("farm", "on", ("in the barn", "under the tractor", "behind the stable",
                         "inside the hen house", "among the pumpkins")),
    Place("island", "on", ("under a palm tree", "behind a rock", "in a small cave",
                           "between the shells", "beside the old lighthouse")),
    Place("park", "in", ("under the slide", "behind a bench", "beside the pond",
                         "in the sandpit", "among the tulips")),
    Place("valley", "in", ("behind a mossy wall", "under the old mill", "beside the stream",
                           "in a field of poppies", "among the apple trees")),
    Place("harbour", "in", ("between the nets", "behind a barrel", "under a heap of ropes",
                            "in a rowing boat", "beside the lighthouse")),
    Place("swamp", "in", ("under a lily pad", "behind a crooked tree", "in the mud",
                          "among the reeds", "on a rotten log")),
    Place("zoo", "in", ("behind the ticket booth", "under a bench", "beside the monkey house",
                        "in a heap of straw", "next to the pond")),
    Place("library", "in", ("behind a tall shelf", "under a table", "between two thick books",
                            "beside the window", "on top of the stairs")),
    Place("school", "in", ("under a desk", "behind the blackboard", "in the music room",
                           "beside the coats", "in the corner of the hall")),
    Place("market", "at", ("under a cheese stall", "behind a cart", "between the apples",
                           "beside the flower seller", "in an empty basket")),
)
HOMES = ("cottage", "house", "little house", "hut", "cosy home", "tiny room", "old tower")

THINGS = (
    "kite", "ball", "hat", "scarf", "key", "book", "drum", "flute", "basket", "lantern", "boat",
    "doll", "ring", "bell", "blanket", "button", "coin", "cup", "feather", "map", "mirror", "shoe",
    "spoon", "stone", "umbrella", "whistle", "wagon", "teddy bear", "pencil", "necklace", "apple",
    "balloon", "watch", "violin", "letter", "shell", "crown", "bag", "acorn", "compass", "mitten",
)
COLOURS = (
    "red", "blue", "green", "yellow", "golden", "silver", "white", "little", "shiny", "old",
    "orange", "purple", "striped", "pink", "black", "round",
)
FOODS = (
    "cake", "pie", "loaf of bread", "bowl of soup", "plate of pancakes", "basket of berries",
    "jar of honey", "bag of nuts", "pot of jam", "bunch of carrots", "basket of apples",
    "tray of biscuits", "wheel of cheese", "plum tart",
)
DAYS = ("morning", "afternoon", "day")
WEATHERS = (
    Weather("sunny", "The sun was shining and the sky was blue.", "the sun was still shining"),
    Weather("windy", "The wind was blowing through the trees.", "the wind had grown quiet"),
    Weather("rainy", "The rain was falling softly.", "the rain had stopped"),
    Weather("snowy", "Snow was falling and everything was white.", "the snow sparkled"),
    Weather("foggy", "A thick fog lay over everything.", "the fog had lifted"),
    Weather("warm", "The air was warm and smelled of flowers.", "the air was still warm"),
    Weather("cold", "It was so cold that the puddles were frozen.", "it was not so cold any more"),
    Weather("cloudy", "Grey clouds covered the sky.", "the clouds had drifted away"),
)
LESSONS = (
    "that [a friend|a good friend] is worth more than gold", "that asking for help is not hard",
    "that small steps lead far", "that kindness always comes back",
    "that it is good to be brave", "that nobody is too small to help",
    "that two can do what one cannot", "that [every|each] day can bring a surprise",
    "that it is never too late to try again", "that patience is a good friend",
)
