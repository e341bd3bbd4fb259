"""What the assembler makes of the kernels for a GPU that need not be there."""

import os
import subprocess
import sys
from pathlib import Path

import compiled
import pytest

SOUND = """
/*0100*/ USGXT.U32 UR10, UR10, 0xe ;
/*0110*/ UMOV UR18, UR10 ;
/*0120*/ HGMMA.64x64x16.F32 R24, R80, gdesc[UR16].tnspB, RZ, !UPT ;
/*0130*/ UIADD3 UR22, UP0, UR10, 0x80, URZ ;
/*0140*/ HGMMA.64x64x16.F32 R24, R88, gdesc[UR20].tnspB, R24, gsb0 ;
"""


def test_a_product_with_a_stale_operand_is_found():
    assert compiled.misaddressed(SOUND) == []
    stale = SOUND.replace("UIADD3 UR22, UP0, UR10", "UIADD3 UR22, UP0, UR5")
    assert [product.split()[2] for product in compiled.misaddressed(stale)] == ["R88,"]


@pytest.mark.skipif(not compiled.CUOBJDUMP.exists(), reason="this Triton comes without NVIDIA's tools")
@pytest.mark.parametrize("head_dim", [16, 32])
def test_every_product_finds_its_operands(head_dim):
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    script = Path(compiled.__file__)
    ran = subprocess.run([sys.executable, script, str(head_dim)], capture_output=True, text=True, env=env)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == ""
