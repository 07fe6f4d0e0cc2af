"""Rewards that were learned: reward models and process reward models from transformers folders.

Frozen, with their own tokenizer and chat template, batched by a token budget; one folder or an ensemble of several.
"""
