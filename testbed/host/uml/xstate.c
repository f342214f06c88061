/* Lets User-mode Linux run on processors with more register state than it was built to know.
 *
 * It saves and restores its processes' extended registers in a buffer of fixed size. Where the processor has more
 * (AMX tiles), the host's kernel still hands out the part that fits, but takes back a whole set only (EFAULT). So the
 * set is made whole here, the rest being what it is in a process that never asked for it: zero.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <elf.h>
#include <stdarg.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/uio.h>

typedef long call(enum __ptrace_request, int, void *, void *);

/* One of each is enough: the kernel is a single thread. */
static char whole[1 << 16] __attribute__((aligned(64)));
static size_t size;

static long set_registers(call *kernel, int pid, void *set, const struct iovec *given)
{
    if (size == 0) {
        struct iovec room = {whole, sizeof whole};
        if (kernel(PTRACE_GETREGSET, pid, set, &room) < 0)
            return -1;
        size = room.iov_len;
        memset(whole, 0, sizeof whole);
    }
    size_t length = given->iov_len < size ? given->iov_len : size;
    struct iovec all = {whole, size};
    memcpy(whole, given->iov_base, length);
    return kernel(PTRACE_SETREGSET, pid, set, &all);
}

long ptrace(enum __ptrace_request request, ...)
{
    static call *kernel;
    va_list arguments;

    va_start(arguments, request);
    int pid = va_arg(arguments, int);
    void *address = va_arg(arguments, void *);
    void *data = va_arg(arguments, void *);
    va_end(arguments);

    if (kernel == NULL)
        kernel = (call *)dlsym(RTLD_NEXT, "ptrace");
    if (request == PTRACE_SETREGSET && (long)address == NT_X86_XSTATE)
        return set_registers(kernel, pid, address, data);
    return kernel(request, pid, address, data);
}
