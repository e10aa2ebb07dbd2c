"""`sequoia generate`: text with a tree, streamed, distributed exactly as the target's own."""
