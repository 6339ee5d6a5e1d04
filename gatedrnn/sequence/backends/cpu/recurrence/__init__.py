"""The recurrence: its operators, what they pass to the loops, and the loops."""
