"""From a model's name to a model that can be used: where it lies, whether it is whole, whether two fit."""
