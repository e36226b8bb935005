"""From what a user calls MODEL to files, a config, a tokenizer and a source of weights."""
