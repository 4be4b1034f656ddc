/* SPDX-License-Identifier: Apache-2.0
 * moert/moert.h: everything. */
#ifndef MOERT_MOERT_H
#define MOERT_MOERT_H

#include <moert/activation.h>
#include <moert/base.h>
#include <moert/checkpoint.h>
#include <moert/context.h>
#include <moert/float8.h>
#include <moert/layer.h>
#include <moert/layer_config.h>
#include <moert/lutb.h>
#include <moert/mxfp8.h>
#include <moert/oracle.h>
#include <moert/routing.h>
#include <moert/safetensors.h>
#include <moert/verify.h>

#endif
