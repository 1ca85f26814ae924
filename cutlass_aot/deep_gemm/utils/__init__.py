"""DeepGEMM's helpers: layouts of scale factors, alignments, and casts to FP8."""

from cutlass_aot.deep_gemm.utils import layout as layout
from cutlass_aot.deep_gemm.utils import math as math
from cutlass_aot.deep_gemm.utils.layout import *
from cutlass_aot.deep_gemm.utils.math import *
