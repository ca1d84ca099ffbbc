"""Which families the converter may walk layer by layer."""

from tests.tiny import tiny_target
from tests.tiny_configs import CONFIGS


def test_only_walks_without_anything_else_count_as_bare():
    """A scale or a cap that is left out measures the divergence of another model."""
    bare = {name for name in CONFIGS if tiny_target(name).is_bare}
    assert bare == {
        *("llama", "llama3", "llama_windowed", "qwen2", "qwen3", "qwen3_moe", "qwen3_next"),
        *("gpt_oss", "laguna", "glm4_moe", "minimax", "deepseek_v3", "glm_moe_dsa"),
        "longcat_flash",
    }
