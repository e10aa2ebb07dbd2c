"""`sequoia check`: whether generated text is distributed as the target's own."""
