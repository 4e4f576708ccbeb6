"""What NVIDIA and AMD share: from tiles with layouts to one thread's code, machine by Protocol."""
