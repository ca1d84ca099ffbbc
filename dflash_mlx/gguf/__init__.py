"""GGUF files: header, weights, rotation and tokenizer."""
