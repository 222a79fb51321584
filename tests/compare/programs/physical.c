/* Physical memory: handles, what is mapped of them, and what keeps the memory when they are released. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "driver.h"
#include "takes.h"

/* CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR */
#define DESCRIPTOR 1
#define READ_WRITE 3

static int create(uint64_t *handle, size_t bytes, int handle_kinds) {
    struct allocation_properties properties = on_the_card(handle_kinds);
    return CALL(cuMemCreate, (uint64_t *, size_t, const struct allocation_properties *, uint64_t))(handle, bytes, &properties, 0);
}

static int release(uint64_t handle) { return CALL(cuMemRelease, (uint64_t))(handle); }

static int map(uint64_t handle, size_t bytes, uint64_t *address) {
    struct access_rights rights = {{1, 0}, READ_WRITE};
    int code = CALL(cuMemAddressReserve, (uint64_t *, size_t, size_t, uint64_t, uint64_t))(address, bytes, 0, 0, 0);
    if (!code) code = CALL(cuMemMap, (uint64_t, size_t, size_t, uint64_t, uint64_t))(*address, bytes, 0, handle, 0);
    return code ? code : CALL(cuMemSetAccess, (uint64_t, size_t, const struct access_rights *, size_t))(*address, bytes, &rights, 1);
}

int take_physical(size_t bytes) {
    uint64_t handle = 0;
    return create(&handle, bytes, 0);
}

/* As PyTorch's expandable segments and everybody else does: the mapping keeps the memory. */
int take_mapped(size_t bytes) {
    uint64_t handle = 0, address = 0;
    int code = create(&handle, bytes, 0);
    if (code) return code;
    code = map(handle, bytes, &address);
    release(handle);
    return code;
}

/* A second reference, got from the address, keeps the memory when the mapping and the first are gone. */
int take_retained(size_t bytes) {
    uint64_t handle = 0, again = 0, address = 0;
    int code = create(&handle, bytes, 0);
    if (code) return code;
    code = map(handle, bytes, &address);
    if (!code) code = CALL(cuMemRetainAllocationHandle, (uint64_t *, void *))(&again, (void *)address);
    if (!code) code = CALL(cuMemUnmap, (uint64_t, size_t))(address, bytes);
    release(handle);
    return code;
}

/* A descriptor keeps the memory when the handle is released. */
int take_descriptor(size_t bytes) {
    uint64_t handle = 0;
    int descriptor = -1, code = create(&handle, bytes, DESCRIPTOR);
    if (code) return code;
    code = CALL(cuMemExportToShareableHandle, (int *, uint64_t, int, uint64_t))(&descriptor, handle, DESCRIPTOR, 0);
    release(handle);
    return code;
}

static int send_descriptor(int socket, int descriptor, int code) {
    char room[CMSG_SPACE(sizeof descriptor)] = {0};
    struct iovec data = {&code, sizeof code};
    struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1};
    if (descriptor >= 0) {
        message.msg_control = room;
        message.msg_controllen = sizeof room;
        struct cmsghdr *head = CMSG_FIRSTHDR(&message);
        head->cmsg_level = SOL_SOCKET;
        head->cmsg_type = SCM_RIGHTS;
        head->cmsg_len = CMSG_LEN(sizeof descriptor);
        memcpy(CMSG_DATA(head), &descriptor, sizeof descriptor);
    }
    return sendmsg(socket, &message, 0) < 0;
}

static int receive_descriptor(int socket, int *descriptor) {
    int code = NO_FUNCTION;
    char room[CMSG_SPACE(sizeof *descriptor)] = {0};
    struct iovec data = {&code, sizeof code};
    struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
    if (recvmsg(socket, &message, 0) <= 0) return OUT_OF_MEMORY;
    struct cmsghdr *head = CMSG_FIRSTHDR(&message);
    if (head) memcpy(descriptor, CMSG_DATA(head), sizeof *descriptor);
    return code;
}

int make_for_import(int socket, size_t bytes) {
    uint64_t handle = 0;
    int descriptor = -1, code = start_driver();
    if (!code) code = create(&handle, bytes, DESCRIPTOR);
    if (!code) code = CALL(cuMemExportToShareableHandle, (int *, uint64_t, int, uint64_t))(&descriptor, handle, DESCRIPTOR, 0);
    char word;
    /* It stays until the other side has what it wants and hangs up. */
    return send_descriptor(socket, descriptor, code) || read(socket, &word, 1) < 0;
}

/* Another process makes the memory and ends; this one holds it. */
int take_imported(size_t bytes) {
    int pair[2], descriptor = -1;
    char socket[16], size[32];
    uint64_t handle = 0;
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair)) give_up("socketpair", 0);
    fcntl(pair[1], F_SETFD, 0);
    snprintf(socket, sizeof socket, "%d", pair[1]);
    snprintf(size, sizeof size, "%zu", bytes);
    pid_t maker = fork();
    if (maker == 0) {
        execl("/proc/self/exe", "ways", "--make-for-import", socket, size, (char *)NULL);
        _exit(127);
    }
    close(pair[1]);
    int code = receive_descriptor(pair[0], &descriptor);
    if (!code) code = CALL(cuMemImportFromShareableHandle, (uint64_t *, void *, int))(&handle, (void *)(intptr_t)descriptor, DESCRIPTOR);
    if (descriptor >= 0) close(descriptor);
    close(pair[0]);
    waitpid(maker, NULL, 0);
    return code;
}
