"""What a process has: its CPU, threads, memory, and what is worked out once."""
