/* core/oracle/decision.h: what a decision holds; seen by core/layer. */
#ifndef MOERT_ORACLE_DECISION_H
#define MOERT_ORACLE_DECISION_H

#include <moert/oracle.h>

#include <pthread.h>

struct moert_oracle_trail;

struct moert_decision {
    int what_if;
    int failed;       /* nothing could serve: no winner below */
    uint32_t backend; /* index in context->backends */
    uint32_t device;  /* index in context->devices; meaningless for a what-if device */
    moert_class_t numeric_class;
    char *backend_name, *device_id, *reason, *json; /* json: made at first use, under `lock` */
    struct moert_oracle_trail *trail;               /* everything else; owner of the strings above except json */
    pthread_mutex_t lock;
};

#endif
