// SPDX-License-Identifier: GPL-2.0

//! Messages between the host tool and the agent in the guest.
