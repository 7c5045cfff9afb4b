"""The 20 texts of the teacher-forced tests: prose, dialogue, code, lists, numbers, several languages, the chat format.

Written for this project. Each has at least 64 tokens; the tests use the first 64."""

IM = "<|im_start|>"
END = "<|im_end|>"

TEXTS = [
    "The harbour was quiet when the last ferry came in. Two men in yellow coats threw the ropes over the iron posts, and the "
    "few passengers walked down the ramp without a word. It had rained all afternoon, and the stones of the quay shone under "
    "the lamps. Nobody noticed the small black dog that followed them into the town.",
    "Photosynthesis is the process by which green plants, algae and some bacteria turn light into chemical energy. In the leaves, "
    "chlorophyll absorbs mostly red and blue light. Water is split, oxygen is released, and the energy is stored in molecules "
    "that later drive the production of sugar from carbon dioxide in the Calvin cycle. Animals depend on it for almost everything they eat and breathe.",
    "def binary_search(items, target):\n    low, high = 0, len(items) - 1\n    while low <= high:\n        middle = (low + high) // 2\n"
    "        if items[middle] == target:\n            return middle\n        if items[middle] < target:\n            low = middle + 1\n"
    "        else:\n            high = middle - 1\n    return -1\n",
    "#include <stdio.h>\n\nint main(int argc, char **argv)\n{\n    for (int i = 1; i < argc; i++) {\n        FILE *f = fopen(argv[i], \"r\");\n"
    "        if (f == NULL) {\n            perror(argv[i]);\n            return 1;\n        }\n        fclose(f);\n    }\n    return 0;\n}\n",
    "Shopping list for the weekend:\n1. Two loaves of brown bread\n2. Half a kilo of tomatoes\n3. Olive oil\n4. A bunch of parsley\n"
    "5. Six eggs\n6. Coffee beans\n7. Butter\n8. Lemons\n9. Rice\n10. Something sweet for the children\n",
    "In 1969 the first people walked on the Moon. In 1971 the first space station was launched, and in 1981 the first reusable "
    "spacecraft flew. By 1998 construction of the International Space Station had begun; it has been occupied since November "
    "2000. The distance to the Moon is about 384,400 km, and light needs 1.28 seconds for it.",
    "7 + 5 = 12\n12 + 9 = 21\n21 - 6 = 15\n15 * 3 = 45\n45 / 9 = 5\n5 + 17 = 22\n22 - 8 = 14\n14 * 2 = 28\n28 + 13 = 41\n41 - 20 = 21\n"
    "21 / 7 = 3\n3 * 3 = 9\n",
    IM + "system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face" + END + "\n" + IM +
    "user\nWhat is the capital of France, and what is it known for?" + END + "\n" + IM +
    "assistant\nThe capital of France is Paris. It is known for the Eiffel Tower, the Louvre and its cafes along the Seine." + END + "\n",
    IM + "system\nAnswer in one short sentence." + END + "\n" + IM + "user\nWhy is the sky blue?" + END + "\n" + IM +
    "assistant\nBecause air scatters short wavelengths of sunlight more than long ones." + END + "\n" + IM +
    "user\nAnd why is it red in the evening?" + END + "\n" + IM + "assistant\nBecause the light takes a longer way through the air.",
    "Der alte Mann sass am Fenster und sah auf die Strasse hinaus. Es war spaet im Herbst, und der Wind trieb die Blaetter ueber "
    "das Pflaster. Manchmal blieb ein Kind stehen und winkte ihm zu. Dann hob er langsam die Hand, und fuer einen Augenblick war er froh.",
    "Le train partait à six heures du matin. Sur le quai, une femme attendait avec une petite valise brune et un chapeau trop grand. "
    "Elle regardait l'horloge, puis la porte, puis encore l'horloge. Personne ne venait, et pourtant elle souriait.",
    "La receta es sencilla: se cortan las patatas en rodajas finas, se fríen despacio en aceite de oliva con un poco de cebolla, se "
    "mezclan con los huevos batidos y se cuaja la tortilla por los dos lados. Se come caliente o fría, con pan.",
    "東京は日本の首都です。人口は約千四百万人で、世界でも最も大きい都市の一つです。春には桜が咲き、多くの人が公園に集まります。",
    "SELECT customer.name, COUNT(*) AS orders, SUM(item.price * item.quantity) AS total\nFROM customer\nJOIN orders ON "
    "orders.customer_id = customer.id\nJOIN item ON item.order_id = orders.id\nWHERE orders.created >= '2024-01-01'\nGROUP BY "
    "customer.name\nHAVING total > 1000\nORDER BY total DESC;\n",
    "{\"name\": \"sensor-17\", \"location\": {\"lat\": 52.52, \"lon\": 13.405}, \"readings\": [{\"time\": \"08:00\", \"celsius\": 11.5}, "
    "{\"time\": \"09:00\", \"celsius\": 12.25}, {\"time\": \"10:00\", \"celsius\": 14.0}], \"active\": true, \"tags\": [\"roof\", \"north\"]}",
    "\"Where have you been?\" she asked. \"I was worried.\"\n\n\"At the library,\" he said. \"They have a new book about the sea, and I "
    "forgot the time.\"\n\n\"You always forget the time when there is a book.\"\n\n\"And you always wait for me,\" he answered, and both laughed.",
    "# Installation\n\nFirst make sure that a C compiler and CMake are installed. Then run:\n\n```\nmkdir build\ncd build\ncmake ..\nmake\n"
    "```\n\nThe programs are now in `build/bin`. To install them for all users, type `make install` as root. See the manual for "
    "a list of all options.",
    "The theorem says that in a right triangle the square of the hypotenuse equals the sum of the squares of the other two sides. If the "
    "short sides are 3 and 4, the long side is 5, since 9 + 16 = 25. The same holds for 5, 12 and 13, and for 8, 15 and 17.",
    "Dear Ms. Hartmann,\n\nThank you for your letter of 12 March. We are sorry that the parcel arrived damaged. A new one has been sent "
    "today and should reach you within three days. You need not return the broken glasses; please throw them away with care.\n\nYours sincerely,\nThe customer service team",
    "Row, row, row your boat, gently down the stream. Merrily, merrily, merrily, merrily, life is but a dream. Row, row, row your boat, "
    "gently down the stream. If you see a crocodile, don't forget to scream. Row, row, row your boat, gently to the shore.",
]
