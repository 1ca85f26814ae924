"""DeepGEMM's functions on prebuilt kernels for sm_90a: ``import cutlass_aot.deep_gemm as deep_gemm``.

Names, arguments and defaults are those of DeepGEMM at 54e2261. Importing this package imports torch.
"""

from cutlass_aot.deep_gemm import testing as testing
from cutlass_aot.deep_gemm import utils as utils
from cutlass_aot.deep_gemm.gemm import *
from cutlass_aot.deep_gemm.utils import *
