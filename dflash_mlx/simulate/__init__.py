"""The width controller driven through recorded costs and invented texts, without a model."""
