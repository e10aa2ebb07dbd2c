"""The offline tree compiler. numpy and `core` only; never torch."""
