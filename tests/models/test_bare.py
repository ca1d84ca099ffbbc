"""Which families the converter can run layer by layer."""

from tests.tiny import tiny_target
from tests.tiny_configs import CONFIGS


def test_only_families_without_extra_operations_are_bare():
    """Without its scale or cap, the divergence of another model is measured."""
    bare = {name for name in CONFIGS if tiny_target(name).is_bare}
    assert bare == {
        *("llama", "llama3", "llama_windowed", "qwen2", "qwen3", "qwen3_moe", "qwen3_next"),
        *("gpt_oss", "laguna", "glm4_moe", "minimax", "deepseek_v3", "glm_moe_dsa"),
        "longcat_flash",
    }
