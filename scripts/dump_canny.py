#!/usr/bin/env python3
"""Write the edges that OpenCV finds in three pictures, for tests/input.rs.

    python3 scripts/dump_canny.py

Needs opencv-python-headless 4.11. The preprocessor of ControlNet calls Canny in this way: on RGB, with thresholds of 100 and 200.
"""

from pathlib import Path

import cv2

ROOT = Path(__file__).parent.parent
for name in ["0", "5", "9"]:
    image = cv2.imread(str(ROOT / f"tests/golden/default-model/{name}.png"))
    edges = cv2.Canny(cv2.cvtColor(image, cv2.COLOR_BGR2RGB), 100, 200)
    print(name, edges.shape, int((edges > 0).sum()))
    cv2.imwrite(str(ROOT / f"tests/input/canny/{name}.png"), edges, [cv2.IMWRITE_PNG_BILEVEL, 1])
