#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks the checks: each must name a fault that was planted for it, and say nothing of a clean tree."""
import os
import tempfile

import house_rules
import include_directions

SPDX = "// SPDX-License-Identifier: Apache-2.0\n"
CLEAN = {
    "engine/view.h": SPDX,
    "engine/tape.h": SPDX + '#include <vector>\n#include "engine/view.h"\n',
    "engine/meson.build": "# SPDX-License-Identifier: Apache-2.0\nfiles('view.h', 'tape.h')\n",
    "distributed/threads.h": SPDX + '#include "engine/view.h"\n',
    "distributed/communicator.h": SPDX,
    "distributed/meson.build": "# SPDX-License-Identifier: Apache-2.0\nfiles('threads.h', 'communicator.h')\n",
    "ops/reference.h": SPDX + '#include "engine/tape.h"\n',
    "ops/square.h": SPDX + '#include "distributed/communicator.h"\nstatic constexpr auto name = "square";\n',
    "ops/meson.build": "# SPDX-License-Identifier: Apache-2.0\nfiles('reference.h', 'square.h')\n",
    "tests/ops/node_table.cpp": SPDX + '#include "ops/square.h"\n// square\n',
    "tests/meson.build": "# SPDX-License-Identifier: Apache-2.0\nfiles('ops/node_table.cpp')\n",
    "README.md": "Words; <build>/tmp and https://example.org/a/home/ are no paths of one machine.\n",
}
# (check, file, what is added to it, what the fault must say)
PLANTED = [
    ("includes", "engine/tape.h", '#include "ops/square.h"\n', 'engine/tape.h:4: may not include "ops/square.h"'),
    ("includes", "distributed/threads.h", '#include "engine/tape.h"\n', "distributed/threads.h:3: may not include"),
    ("includes", "ops/square.h", '#include "distributed/threads.h"\n', "ops/square.h:4: may not include"),
    ("includes", "ops/reference.h", '#include "ops/square.h"\n', "ops/reference.h:3: may not include"),
    ("includes", "engine/tape.h", '#include "view.h"\n', "engine/tape.h:4: \"view.h\" is not relative to the root"),
    ("includes", "engine/tape.h", "#include <engine/view.h>\n", "engine/tape.h:4: write \"engine/view.h\" in quotes"),
    ("includes", "engine/tape.h", '#include "engine/gone.h"\n', "engine/tape.h:4: \"engine/gone.h\" does not exist"),
    ("licence", "engine/new.h", "#pragma once\n", "engine/new.h:1: no line"),
    ("text", "README.md", "See /" + "work/notes.\n", "README.md:2: a path of one machine"),
    ("text", "engine/tape.h", "// TO" + "DO: all of it\n", "engine/tape.h:4: something left undone"),
    ("nodes", "ops/square.h", 'static constexpr auto name = "cube";\n', "ops/square.h: the node cube"),
    ("listed", "engine/new.h", SPDX, "engine/new.h: is not listed in engine/meson.build"),
    ("listed", "tests/ops/test_new.cpp", SPDX, "tests/ops/test_new.cpp: is not listed in tests/meson.build"),
    ("listed", "README.md", "```cpp\n```\n", "README.md: has C++ blocks"),
]


def check(name, root):
    return list(include_directions.faults_of(root) if name == "includes" else house_rules.RULES[name](root))


def main():
    for name, file, added, expected in [(None, None, None, None)] + PLANTED:
        with tempfile.TemporaryDirectory() as root:
            tree = dict(CLEAN, **{"tests/docs/meson.build": "# SPDX-License-Identifier: Apache-2.0\n"})
            if file:
                tree[file] = tree.get(file, "") + added
            for path, text in tree.items():
                os.makedirs(os.path.dirname(os.path.join(root, path)), exist_ok=True)
                with open(os.path.join(root, path), "w", encoding="utf-8") as out:
                    out.write(text)
            if file:
                faults = check(name, root)
                assert len(faults) == 1 and faults[0].startswith(expected), (expected, faults)
            else:
                for rule in ["includes", *house_rules.RULES]:
                    assert not check(rule, root), (rule, check(rule, root))


if __name__ == "__main__":
    main()
