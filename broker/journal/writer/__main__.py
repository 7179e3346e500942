"""``python -m broker.journal.writer FD``, its options on the input: started by the recorder, of no use by hand."""

import os
import sys

# One thread does all the work; the pools of a linear algebra that nobody asks for would cost memory and a start.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

from broker.journal.writer.start import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
