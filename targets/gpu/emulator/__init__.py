"""What the emulators of both vendors share: memory, time between warps, groups and findings.

An emulator executes the *final* text of a kernel (PTX or AMDGPU assembly), instruction by
instruction, with NumPy. Each vendor's package decodes its text and knows its registers and
instructions; this one knows what a GPU is whoever made it.

How it runs: a *cohort* is a number of thread blocks that one process executes together. Every
register is one NumPy array over all threads of the cohort, so an instruction costs one NumPy call
whatever the number of threads. What cannot go in step is a *group*: the *units* (threads on NVIDIA,
waves on AMD) that are at the same place. Groups split where a branch diverges and merge where
they meet again (`scheduler`).

Because threads go in step, a missing barrier does not show in the result. It shows in `clocks`: an
access to shared memory that no barrier orders after another warp's is a finding, in every
schedule and not only in an unlucky one.

Order of imports: `program` and `findings` know nothing of the others; `memory`, `clocks`,
`shared_memory`, `barriers`, `pending` and `scheduler` are the hardware; `launch` and `grid` run it.
"""
