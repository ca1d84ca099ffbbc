"""Twenty prompts of our own in five kinds, four each. CC0."""

PROMPTS: dict[str, tuple[str, ...]] = {
    "chat": (
        "What should I cook tonight with eggs, rice and spinach?",
        "Can you explain why the sky looks blue during the day?",
        "I feel nervous before an exam. What can I do to calm down?",
        "Tell me about the history of the bicycle in a few sentences.",
    ),
    "code": (
        "Write a Python function that checks whether a string is a palindrome.",
        "Write a Python function that returns the factorial of a number.",
        "Show me a for loop in C that prints the numbers from 1 to 10.",
        "Write a SQL query that selects all customers from Berlin.",
    ),
    "arithmetic": (
        "A train travels 60 miles in 2 hours. How far does it travel in 5 hours? Explain.",
        "What is 17 times 6? Show the steps.",
        "If a shirt costs 20 dollars and is reduced by 25 percent, what does it cost?",
        "Tom has 12 apples and gives 5 to Anna. How many are left? Explain step by step.",
    ),
    "lists": (
        "List ten animals that live in the ocean.",
        "Give me five tips for learning a new language.",
        "List the days of the week and one activity for each.",
        "Name eight countries in Europe with their capitals.",
    ),
    "translation": (
        "Translate into French: The weather is nice today and we are going to the park.",
        "Translate into Spanish: I would like a cup of coffee with milk, please.",
        "Translate into German: My brother lives in a small house near the river.",
        "Translate into Italian: We are reading a book about the stars.",
    ),
}
"""By kind; every kind counts alike."""
