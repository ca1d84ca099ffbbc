"""Forty prompts whose answers repeat much of their own text: five tasks on eight texts."""

TASKS = {
    "repeat": "Repeat the following text exactly.\n\n{text}",
    "edit": "Write the following text again and change only the first word to 'Now'.\n\n{text}",
    "quote": "Quote the first two sentences or lines of this text.\n\n{text}",
    "list": "Copy each sentence or line of this text into a numbered list.\n\n{text}",
    "json": 'Put this text into JSON as {{"text": "..."}} without any change.\n\n{text}',
}

TEXTS = {
    "function": """def mean(values):
    total = 0
    for value in values:
        total += value
    return total / len(values)""",
    "class": """class Stack:
    def __init__(self):
        self.items = []

    def push(self, item):
        self.items.append(item)

    def pop(self):
        return self.items.pop()""",
    "harbour": (
        "The harbour opens at six. Fishing boats leave first, then the ferry. The ferry carries "
        "forty cars and two hundred people. In winter it sails only twice a day."
    ),
    "recipe": (
        "Boil two litres of water. Add a spoon of salt and the noodles. Cook them for nine "
        "minutes and stir twice. Drain the noodles and add butter."
    ),
    "meeting": (
        "The meeting on Thursday starts at ten. Anna presents the budget. Boris reports on the "
        "new warehouse. Questions are collected until Wednesday evening."
    ),
    "settings": """host = "localhost"
port = 8080
timeout = 30
log_level = "info"
workers = 4""",
    "keys": """name: Name
address: Address
telephone: Telephone
country: Country
comment: Comment""",
    "river": (
        "The river is 310 kilometres long. It rises in the northern hills and flows through "
        "three lakes. Its water level is measured at eleven stations every morning."
    ),
}

COPY_PROMPTS = {
    f"{task} {name}": template.format(text=text)
    for name, text in TEXTS.items()
    for task, template in TASKS.items()
}
