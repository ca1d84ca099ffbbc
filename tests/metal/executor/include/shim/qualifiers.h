// Address spaces and function qualifiers. They are erased here; typecheck.py checks them.
// Declarations of threadgroup variables are rewritten before this text is compiled (lower.py).
#pragma once
#define device
#define constant
#define thread
#define threadgroup
#define kernel
#define METAL_FUNC inline
#define METAL_CONST
#define __METAL_VERSION__ 310

#define INFINITY __builtin_inff()
#define NAN __builtin_nanf("")
#define MAXFLOAT 3.402823466e38f
#define HUGE_VALF __builtin_inff()
#define FLT_MAX 3.402823466e38f
#define FLT_MIN 1.175494351e-38f
#define FLT_EPSILON 1.192092896e-07f
#define HALF_MAX 65504.0f
#define M_E_F 2.71828182845904523536f
#define M_LOG2E_F 1.44269504088896340736f
#define M_LN2_F 0.69314718055994530942f
#define M_PI_F 3.14159265358979323846f
#define M_SQRT1_2_F 0.70710678118654752440f
